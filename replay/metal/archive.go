package metal

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pianola-engine/pianola/internal/metal/driver"
)

// archive is a file that keeps compiled pipelines for later processes. A problem with it is
// never an error: if the file is missing, damaged, not writable or belongs to another GPU, the
// pipelines are compiled.
type archive struct {
	drv    driver.Device
	object driver.Archive // 0 if there is no archive
	file   string
	there  bool // the file existed when it was opened
	added  int  // number of pipelines that the file lacks
}

// archiveExt is the extension of archive files.
const archiveExt = ".metalarchive"

// openArchive opens the archive of a library in a directory. The file's name identifies the
// library, its language, the version of the system and the GPU, because the content is valid only
// for these.
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

// note counts a pipeline that was added.
func (a *archive) note(p *driver.Pipeline) {
	if p.Archived == driver.Added {
		a.added++
	}
}

// save writes the added pipelines. It replaces the file instead of changing it, since other
// processes may have it open.
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
	if err != nil && a.there { // an archive that can be opened but not extended is created anew the next time
		_ = os.Remove(a.file)
	}
}

func (a *archive) close() {
	if a.object != 0 {
		a.drv.Release(a.object)
	}
	a.object = 0
}
