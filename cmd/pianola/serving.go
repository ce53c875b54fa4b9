package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/pianola-engine/pianola/internal/serve"
	"github.com/pianola-engine/pianola/internal/serve/observe"
)

// running is a service with its listeners.
type running struct {
	f        *serveFlags
	s        *server.Server
	o        server.Options
	out      io.Writer
	main     net.Listener
	cert     atomic.Pointer[tls.Certificate]
	failed   chan error // of the servers
	profiles io.Closer
}

// listen opens all addresses, and serves them when none has failed.
func (r *running) listen() (err error) {
	var opened []io.Closer
	defer func() {
		if err != nil {
			for _, l := range opened {
				err = errors.Join(err, l.Close())
			}
		}
	}()
	if r.main, err = net.Listen("tcp", r.f.addr); err != nil {
		return err
	}
	opened = append(opened, r.main)
	if !server.Loopback(r.main.Addr()) && r.f.apiKeys == "" && !r.f.insecure {
		return fmt.Errorf("--addr %s: other machines can reach this address: use --api-keys, or --insecure-listen to let everybody in", r.f.addr)
	}
	service := r.main
	if r.f.cert != "" {
		if err := r.readCertificate(); err != nil {
			return err
		}
		service = tls.NewListener(service, &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return r.cert.Load(), nil },
		})
	}
	var metrics, profiles net.Listener
	if r.f.metricsAddr != "" {
		if metrics, err = net.Listen("tcp", r.f.metricsAddr); err != nil {
			return fmt.Errorf("--metrics-addr: %w", err)
		}
		opened = append(opened, metrics)
	}
	if r.f.pprof != "" {
		if profiles, err = observe.ListenProfiles(r.f.pprof); err != nil {
			return err
		}
	}
	go func() { r.failed <- r.s.Serve(service) }()
	if metrics != nil {
		r.o.Log.Info("metrics", "address", metrics.Addr().String())
		go func() { r.failed <- r.s.ServeOperator(metrics) }()
	}
	if profiles != nil {
		one := observe.ProfileServer()
		r.profiles = one
		r.o.Log.Info("profiles", "address", profiles.Addr().String())
		go func() { r.failed <- one.Serve(profiles) }()
	}
	return nil
}

// close ends the profiles' server.
func (r *running) close() error {
	if r.profiles == nil {
		return nil
	}
	return r.profiles.Close()
}

// readCertificate reads the certificate and its key.
func (r *running) readCertificate() error {
	c, err := tls.LoadX509KeyPair(r.f.cert, r.f.key)
	if err != nil {
		return fmt.Errorf("--tls-cert %s: %w", r.f.cert, err)
	}
	r.cert.Store(&c)
	return nil
}

// run loads the models and serves until ctx ends, a signal arrives or a server fails.
func (r *running) run(ctx context.Context) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer signal.Reset(os.Interrupt, syscall.SIGTERM) // the next signal ends the process
	defer stop()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	r.o.Log.Info("listening", "address", r.main.Addr().String())
	loaded := make(chan error, 1)
	go func() { loaded <- r.s.Preload(ctx) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.failed:
			return err
		case err := <-loaded:
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			if err := r.greet(); err != nil {
				return err
			}
		case <-again:
			r.reload()
		}
	}
}

// reload reads the files again that a signal asks for.
func (r *running) reload() {
	if r.o.Keys != nil {
		if err := r.o.Keys.Reload(); err != nil {
			r.o.Log.Error("the API keys remain as they were", "error", err.Error())
		} else {
			r.o.Log.Info("API keys read", "keys", r.o.Keys.Len())
		}
	}
	if r.f.cert != "" {
		if err := r.readCertificate(); err != nil {
			r.o.Log.Error("the certificate remains as it was", "error", err.Error())
		} else {
			r.o.Log.Info("certificate read")
		}
	}
}

// greet prints where the service is, and a request to try.
func (r *running) greet() error {
	host, port, err := net.SplitHostPort(r.main.Addr().String())
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip.IsUnspecified() {
		host = "localhost"
	}
	scheme, options := "http", ""
	if r.f.cert != "" {
		scheme, options = "https", " --cacert "+r.f.cert
	}
	if r.o.Keys != nil {
		options += ` -H "Authorization: Bearer $KEY"`
	}
	url := scheme + "://" + net.JoinHostPort(host, port)
	id := r.o.Models[0].ID
	path, input := "/v1/chat/completions", `"messages":[{"role":"user","content":"Hello"}]`
	if info, ok := r.s.Info(id); ok && !info.Chat {
		path, input = "/v1/completions", `"prompt":"Hello"`
	}
	body := strings.ReplaceAll(fmt.Sprintf(`{"model":%q,%s,"max_tokens":64}`, id, input), "'", `'\''`) // for the shell
	_, err = fmt.Fprintf(r.out, "Pianola serves %s at %s\npage  %s/\ntry   curl%s %s%s -H 'Content-Type: application/json' -d '%s'\n",
		names(r.o.Models), url, url, options, url, path, body)
	return err
}
