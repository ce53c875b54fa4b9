package metal

import (
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/pianola-engine/pianola/internal/metal/driver"
)

// Libraries caches the libraries compiled from Kernels for loaded devices, so that each is
// compiled once per GPU. The zero value is ready to use, by several goroutines.
type Libraries struct {
	mu   sync.Mutex
	made map[libraryKey]*sharedLibrary
}

type libraryKey struct {
	registry uint64 // registry ID of the GPU
	hash     [sha256.Size]byte
}

type sharedLibrary struct {
	object driver.Library
	users  int
}

// use returns a library and a function that releases it. It calls compile for the first user of
// the library.
func (l *Libraries) use(drv driver.Device, key libraryKey, compile func() (driver.Library, error)) (driver.Library, func(), error) {
	if l == nil { // the library is the device's own
		l = new(Libraries)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.made[key]
	if s == nil {
		object, err := compile()
		if err != nil {
			return 0, nil, err
		}
		s = &sharedLibrary{object: object}
		if l.made == nil {
			l.made = map[libraryKey]*sharedLibrary{}
		}
		l.made[key] = s
	}
	s.users++
	return s.object, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(l.made, key)
			drv.Release(s.object)
		}
	}, nil
}

// library returns the library of the kernels and its hash: the one compiled by Apple's compiler
// if the system accepts it, or else one compiled from source.
func (d *Device) library() (driver.Library, [sha256.Size]byte, error) {
	k := d.o.Kernels
	if k.Data != nil {
		hash := sha256.Sum256(k.Data)
		library, err := d.useLibrary(hash, func() (driver.Library, error) { return d.drv.LibraryData(k.Data) })
		if err == nil || k.Source == nil {
			return library, hash, err
		}
	}
	text, err := k.Source()
	if err != nil {
		return 0, [sha256.Size]byte{}, fmt.Errorf("metal: kernels: %w", err)
	}
	hash := sha256.Sum256(text)
	library, err := d.useLibrary(hash, func() (driver.Library, error) { return d.drv.LibrarySource(text) })
	return library, hash, err
}

func (d *Device) useLibrary(hash [sha256.Size]byte, compile func() (driver.Library, error)) (driver.Library, error) {
	library, giveBack, err := d.o.Kernels.Shared.use(d.drv, libraryKey{d.properties.Registry, hash}, compile)
	if err != nil {
		return 0, fmt.Errorf("metal: kernels: %w", err)
	}
	d.own.giveBack = append(d.own.giveBack, giveBack)
	return library, nil
}
