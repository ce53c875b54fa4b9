package main

/*
#cgo CFLAGS: -O2 -std=c11
#include "call.h"

// The C compiler compares the functions that Go exports with their declarations in pianola.h. Go
// has no const, so these names stand for it.
typedef const char const_char;
typedef const pianola_options const_options;
typedef const pianola_request const_request;
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime/cgo"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/pianola-engine/pianola"
)

// maxText bounds a prompt in bytes, far above any context.
const maxText = 64 << 20

// status returns the result of a function that ended with err, and keeps the text of the error
// for pianola_error.
func status(err error) C.int {
	var bad invalid
	var sampling *pianola.SamplingError
	var s C.int
	switch {
	case err == nil:
		return C.pianola_ok
	case errors.Is(err, errStopped):
		return C.pianola_stopped
	case errors.Is(err, errCancelled):
		return C.pianola_cancelled
	case errors.Is(err, pianola.ErrContextFull):
		s = C.pianola_full
	case errors.Is(err, pianola.ErrBusy):
		s = C.pianola_busy
	case errors.As(err, &bad), errors.As(err, &sampling), errors.Is(err, pianola.ErrEmptyPrompt), errors.Is(err, pianola.ErrStopString):
		s = C.pianola_invalid
	default:
		s = C.pianola_failed
	}
	text := []byte(strings.ToValidUTF8(strings.ReplaceAll(err.Error(), "\n", "; "), "\uFFFD"))
	C.call_fail((*C.char)(unsafe.Pointer(unsafe.SliceData(append(text, 0)))), C.size_t(len(text)))
	return s
}

// guard runs a function of the interface. A panic becomes an error, because none may reach C.
func guard(f func() error) (result C.int) {
	defer func() {
		if p := recover(); p != nil {
			result = status(fmt.Errorf("internal error: %v", p))
		}
	}()
	return status(f())
}

// invalidf returns the error of an invalid argument.
func invalidf(format string, args ...any) error { return invalid{fmt.Errorf(format, args...)} }

// text returns a C string; "" if it is null.
func text(what string, s *C.const_char) (string, error) {
	if s == nil {
		return "", nil
	}
	t := C.GoString((*C.char)(unsafe.Pointer(s)))
	if !utf8.ValidString(t) {
		return "", invalidf("%s is not UTF-8", what)
	}
	return t, nil
}

// bytes returns a copy of length bytes of text.
func bytes(what string, s *C.const_char, length C.size_t) (string, error) {
	switch {
	case s == nil:
		return "", invalidf("%s is NULL", what)
	case length > maxText:
		return "", invalidf("%s has %d bytes, more than %d", what, uint64(length), maxText)
	}
	t := C.GoStringN((*C.char)(unsafe.Pointer(s)), C.int(length))
	if !utf8.ValidString(t) {
		return "", invalidf("%s is not UTF-8", what)
	}
	return t, nil
}

//export pianola_error
func pianola_error() *C.const_char { return (*C.const_char)(unsafe.Pointer(C.call_text())) }

//export pianola_open
func pianola_open(path *C.const_char, options *C.const_options, model *C.pianola_model) C.int {
	return guard(func() error {
		if model == nil {
			return invalidf("model is NULL")
		}
		model.id = 0
		if path == nil {
			return invalidf("path is NULL")
		}
		var o pianola.Options
		if options != nil {
			device, err := text("device", (*C.const_char)(unsafe.Pointer(options.device)))
			if err == nil {
				err = o.Device.UnmarshalText([]byte(device))
			}
			if err != nil {
				return invalid{err}
			}
			mode, err := text("mode", (*C.const_char)(unsafe.Pointer(options.mode)))
			if err == nil {
				err = o.Mode.UnmarshalText([]byte(mode))
			}
			if err != nil {
				return invalid{err}
			}
			if options.threads < 0 || options.context < 0 {
				return invalidf("threads is %d and context is %d: must not be negative", options.threads, options.context)
			}
			o.Threads, o.Table.Context = int(options.threads), int(options.context)
		}
		m, err := pianola.Open(context.Background(), C.GoString((*C.char)(unsafe.Pointer(path))), o)
		if err != nil {
			return err
		}
		model.id = C.uint64_t(cgo.NewHandle(m))
		return nil
	})
}

// outside returns an error if the calling thread is running a callback.
func outside(function string) error {
	if C.call_depth() > 0 {
		return invalidf("%s was called by a callback", function)
	}
	return nil
}

//export pianola_close
func pianola_close(model C.pianola_model) C.int {
	return guard(func() error {
		if err := outside("pianola_close"); err != nil {
			return err
		}
		m, err := take[*pianola.Model](uint64(model.id))
		if err != nil {
			return err
		}
		return m.Close()
	})
}

//export pianola_new_session
func pianola_new_session(model C.pianola_model, out *C.pianola_session) C.int {
	return guard(func() error {
		if out == nil {
			return invalidf("session is NULL")
		}
		out.id = 0
		m, err := lookup[*pianola.Model](uint64(model.id))
		if err != nil {
			return err
		}
		s, err := m.NewSession(pianola.SessionOptions{})
		if err != nil {
			return err
		}
		out.id = C.uint64_t(cgo.NewHandle(&session{Session: s}))
		return nil
	})
}

//export pianola_close_session
func pianola_close_session(of C.pianola_session) C.int {
	return guard(func() error {
		if err := outside("pianola_close_session"); err != nil {
			return err
		}
		s, err := take[*session](uint64(of.id))
		if err != nil {
			return err
		}
		return s.Close()
	})
}

//export pianola_chat_template
func pianola_chat_template(of C.pianola_session, source *C.const_char, length C.size_t) C.int {
	return guard(func() error {
		s, err := lookup[*session](uint64(of.id))
		if err != nil {
			return err
		}
		t, err := bytes("template", source, length)
		if err != nil {
			return err
		}
		return s.setTemplate(t)
	})
}

// errStopped ends a generation whose callback has returned another value than 0.
var errStopped = errors.New("stopped by the callback")

//export call_stream
func call_stream(of C.pianola_session, chat C.int, input *C.const_char, length C.size_t, r *C.const_request, f C.pianola_callback, user C.uintptr_t) C.int {
	return guard(func() error {
		s, err := lookup[*session](uint64(of.id))
		if err != nil {
			return err
		}
		what, start := "prompt", s.generate
		if chat != 0 {
			what, start = "message", s.answer
		}
		text, err := bytes(what, input, length)
		if err != nil {
			return err
		}
		if f == nil {
			return invalidf("callback is NULL")
		}
		o, err := request(r)
		if err != nil {
			return err
		}
		ctx, err := s.begin()
		if err != nil {
			return err
		}
		defer s.end()
		tokens, err := start(ctx, text, o)
		if err != nil {
			return err
		}
		var piece []byte // with a 0 byte at its end
		for tok, err := range tokens {
			if err != nil {
				return err
			}
			piece = append(append(piece[:0], tok.Text...), 0)
			if C.call_callback(f, user, (*C.char)(unsafe.Pointer(unsafe.SliceData(piece))), C.size_t(len(tok.Text)), C.int32_t(tok.ID), C.int32_t(tok.Position)) != 0 {
				return errStopped
			}
		}
		return nil
	})
}

// request returns the options of a generation.
func request(r *C.const_request) (o pianola.GenerateOptions, err error) {
	if r == nil {
		return o, nil
	}
	if r.max_tokens < 0 || r.top_k < 0 {
		return o, invalidf("max_tokens is %d and top_k is %d: must not be negative", r.max_tokens, r.top_k)
	}
	stop, err := text("stop", (*C.const_char)(unsafe.Pointer(r.stop)))
	if err != nil {
		return o, err
	}
	if r.stop != nil {
		o.Stop = []string{stop}
	}
	o.MaxTokens = int(r.max_tokens)
	o.Sampling = pianola.Sampling{
		Temperature: float64(r.temperature), TopK: int(r.top_k), TopP: float64(r.top_p), MinP: float64(r.min_p), Seed: uint64(r.seed),
	}
	return o, nil
}

//export pianola_cancel
func pianola_cancel(of C.pianola_session) C.int {
	return guard(func() error {
		s, err := lookup[*session](uint64(of.id))
		if err == nil {
			s.interrupt()
		}
		return err
	})
}

//export pianola_reset
func pianola_reset(of C.pianola_session) C.int {
	return guard(func() error {
		s, err := lookup[*session](uint64(of.id))
		if err != nil {
			return err
		}
		return s.forget()
	})
}
