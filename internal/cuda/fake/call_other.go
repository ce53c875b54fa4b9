//go:build !linux || !(amd64 || arm64) || nocuda

package fake

import "errors"

const supported = false

func dlopen(string) (uintptr, error) { return 0, errors.New("not supported") }

func (d *Driver) call(string, ...uintptr) uintptr { return 0 }

func (d *Driver) text(string) string { return "" }
