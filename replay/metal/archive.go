package metal

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pianola-engine/pianola/internal/metal/driver"
)

// archive is the file that keeps compiled pipelines from one process to the
// next. Nothing about it is an error: where it is missing, damaged or of another
// GPU, or cannot be written, pipelines are compiled.
type archive struct {
	drv    driver.Device
	object driver.Archive // 0: there is none
	file   string
	there  bool // the file was
	added  int  // pipelines that the file does not have
}

// archiveExt is how the files' names end.
const archiveExt = ".metalarchive"

// openArchive opens the archive of a library in a folder. What it holds is for
// this library, its language, this version of the system and this GPU, which are
// the file's name.
func (d *Device) openArchive(folder string, library [sha256.Size]byte) *archive {
	if folder == "" {
		return &archive{}
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%x\n%s\n%s\n%s\n", library, driver.Language, d.properties.OS, d.properties.Name))
	a := &archive{drv: d.drv, file: filepath.Join(folder, fmt.Sprintf("%x", key[:16])+archiveExt)}
	if info, err := os.Stat(a.file); err == nil && info.Mode().IsRegular() {
		var err error
		a.object, err = d.drv.Archive(a.file)
		a.there = err == nil
	}
	if !a.there {
		a.object, _ = d.drv.Archive("")
	}
	return a
}

// note counts a pipeline that was made.
func (a *archive) note(p *driver.Pipeline) {
	if p.Archived == driver.Added {
		a.added++
	}
}

// save writes what was added. A file that readers may have opened is replaced,
// not changed.
func (a *archive) save() {
	if a.object == 0 || a.added == 0 {
		return
	}
	folder := filepath.Dir(a.file)
	if os.MkdirAll(folder, 0o700) != nil {
		return
	}
	temporary, err := os.MkdirTemp(folder, ".archive-")
	if err != nil {
		return
	}
	defer os.RemoveAll(temporary)
	made := filepath.Join(temporary, filepath.Base(a.file))
	if err = a.drv.SaveArchive(a.object, made); err == nil {
		err = os.Rename(made, a.file)
	}
	if err != nil && a.there { // what can be opened and not extended is begun anew the next time
		_ = os.Remove(a.file)
	}
}

func (a *archive) close() {
	if a.object != 0 {
		a.drv.Release(a.object)
	}
	a.object = 0
}
