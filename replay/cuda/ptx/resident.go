package ptx

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Resident is the name of the entry that Interpreter makes.
const Resident = "resident"

// The parameters of an entry, in the order in which package shaders/gen has them: eight
// bindings, 64 bytes, and these.
const (
	paramSecond = 9
	paramStep   = 10
	paramCount  = 12
	paramBytes  = 176
)

// Offsets in a record of the command array, which Resident reads: a command's
// arguments as its entry has them, then its own. The first record is the
// kernel patch's.
const (
	RecordBytes = 256

	RecordSecond   = 176 // the command's secondary bytes, which only the copy on the processor has
	RecordBody     = 192 // index of the entry
	RecordGridX    = 196
	RecordGridY    = 200
	RecordTiles    = 204 // threadgroups of the grid
	RecordBarrier  = 208 // not 0: all commands before it must have ended
	RecordPrefetch = 216 // address of bytes that a later command reads first
	RecordAhead    = 224 // how many, 32 bits
)

// Offsets in the 64 bytes of Resident's own parameters. Its bindings are the
// command array, the secondary bytes of the first command after patch, a
// counter that starts at 0, and the trace or 0.
const (
	ResidentTokens = 0 // at most so many
	ResidentLast   = 4 // index of the last record
)

// stepStop is the offset of the stop flag in a step block.
const stepStop = 32

// Interpreter returns a text with one kernel, Resident, which walks an array of
// commands for a number of tokens. The bodies of the entries are in it as they
// are, so that a command computes what its entry computes: a body finds its
// arguments in shared memory, its position in the interpreter's registers, and
// returns to the interpreter. Body 0 is patch; the others do not look at the
// stop flag, which changes between tokens only.
//
// A kernel of many threadgroups that meet at barriers must be launched so that
// all of them run at once.
func Interpreter(version, target string, bodies []*Entry, threads int) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".version %s\n.target %s\n.address_size 64\n.extern .shared .align 16 .b8 pianola_tg[];\n", version, target)
	for i, e := range bodies {
		fmt.Fprintf(&b, "// body %d %s\n", i, e.Name)
	}
	fmt.Fprintf(&b, ".visible .entry %s(\n", Resident)
	for i := range paramCount {
		decl := fmt.Sprintf(".param .u64 p%d", i)
		switch i {
		case 8:
			decl = ".param .align 16 .b8 p8[64]"
		case 11:
			decl = ".param .align 16 .b8 p11[32]"
		}
		if i < paramCount-1 {
			decl += ","
		}
		fmt.Fprintf(&b, "\t%s\n", decl)
	}
	fmt.Fprintf(&b, ")\n.maxntid %d, 1, 1\n.minnctapersm 1\n{\n", threads)
	b.WriteString(walkStart)
	for i := range bodies {
		fmt.Fprintf(&b, "\tsetp.eq.u32 %%qp, %%qbody, %d;\n\t@%%qp bra $Q_body%d;\n", i, i)
	}
	b.WriteString("\tbra $Q_next;\n")
	for i, e := range bodies {
		lines, err := e.spliced(i, i == 0)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "$Q_body%d:\n\t{\n", i)
		for _, l := range lines {
			fmt.Fprintln(&b, l)
		}
		fmt.Fprintf(&b, "\t}\n$Q_end%d:\n\tbra $Q_next;\n", i)
	}
	b.WriteString(walkEnd)
	b.WriteString("}\n")
	b.WriteByte(0)
	return b.Bytes(), nil
}

// walkStart is the interpreter up to the choice of a body. A thread keeps its
// word of the next record in a register while a body runs.
const walkStart = `	.shared .align 16 .b8 q_records[512];
	.reg .pred %qp, %qfirst, %qcopy, %qsecond;
	.reg .b32 %qtid, %qbid, %qblocks, %qx, %qy, %qz, %qtile, %qtiles, %qgx, %qgy, %qbody, %qat, %qlast, %qtokens, %qtarget, %qword, %qa, %qb, %qthreads;
	.reg .b64 %qrec, %qother, %qcmds, %qseconds, %qcounter, %qtrace, %qstep, %qsrc, %qd, %qend, %qclock;
	mov.u32 %qtid, %tid.x;
	mov.u32 %qthreads, %ntid.x;
	mov.u32 %qbid, %ctaid.x;
	mov.u32 %qblocks, %nctaid.x;
	ld.param.u64 %qcmds, [p0];
	ld.param.u64 %qseconds, [p1];
	ld.param.u64 %qcounter, [p2];
	ld.param.u64 %qtrace, [p3];
	ld.param.u32 %qtokens, [p8];
	ld.param.u32 %qlast, [p8+4];
	ld.param.u64 %qstep, [p10];
	mov.u64 %qrec, q_records;
	add.s64 %qother, %qrec, 256;
	mov.u32 %qtarget, 0;
	setp.eq.u32 %qfirst, %qtid, 0;
	setp.lt.u32 %qcopy, %qtid, 64;
	add.s32 %qa, %qtid, -44;
	setp.lt.u32 %qsecond, %qa, 4;
	// Only the first thread of the first threadgroup times.
	or.b32 %qa, %qtid, %qbid;
	setp.eq.u32 %qp, %qa, 0;
	selp.b64 %qtrace, %qtrace, 0, %qp;
	setp.eq.u32 %qp, %qtokens, 0;
	@%qp bra $Q_exit;
	// The record of patch.
	mul.wide.u32 %qd, %qtid, 4;
	add.s64 %qsrc, %qcmds, %qd;
	@%qcopy ld.global.u32 %qword, [%qsrc];
	add.s64 %qd, %qrec, %qd;
	@%qcopy st.shared.u32 [%qd], %qword;
	mov.u32 %qat, 0;
	barrier.sync 0;
	mov.u64 %qclock, %clock64;
$Q_command:
	// The next record's word; its secondary bytes only if patch is done.
	add.s32 %qa, %qat, 1;
	setp.gt.u32 %qp, %qa, %qlast;
	selp.b32 %qa, 0, %qa, %qp;
	shl.b32 %qa, %qa, 6;
	add.s32 %qa, %qa, %qtid;
	mul.wide.u32 %qd, %qa, 4;
	add.s64 %qsrc, %qcmds, %qd;
	@%qcopy ld.global.u32 %qword, [%qsrc];
	add.s32 %qa, %qat, -1;
	add.s32 %qb, %qlast, -1;
	setp.lt.and.u32 %qp, %qa, %qb, %qsecond;
	mul.wide.u32 %qd, %qat, 16;
	add.s64 %qsrc, %qseconds, %qd;
	mul.wide.u32 %qd, %qtid, 4;
	add.s64 %qsrc, %qsrc, %qd;
	@%qp ld.relaxed.gpu.global.u32 %qword, [%qsrc+-176];
	ld.shared.v4.u32 {%qbody, %qgx, %qgy, %qtiles}, [%qrec+192];
	mov.u32 %qtile, %qbid;
$Q_tile:
	setp.ge.u32 %qp, %qtile, %qtiles;
	@%qp bra $Q_done;
	rem.u32 %qx, %qtile, %qgx;
	div.u32 %qa, %qtile, %qgx;
	rem.u32 %qy, %qa, %qgy;
	div.u32 %qz, %qa, %qgy;
`

// walkEnd is what follows a body: the other tiles, bytes for a later command on
// their way, the next record, and the barrier.
const walkEnd = `$Q_next:
	add.s32 %qtile, %qtile, %qblocks;
	setp.ge.u32 %qp, %qtile, %qtiles;
	@%qp bra $Q_done;
	barrier.sync 0;
	bra $Q_tile;
$Q_done:
	ld.shared.u64 %qsrc, [%qrec+216];
	ld.shared.u32 %qa, [%qrec+224];
	cvt.u64.u32 %qend, %qa;
	add.s64 %qend, %qend, %qsrc;
	mad.lo.s32 %qa, %qbid, %qthreads, %qtid;
	mul.wide.u32 %qd, %qa, 128;
	add.s64 %qsrc, %qsrc, %qd;
	mul.lo.s32 %qa, %qblocks, %qthreads;
	mul.wide.u32 %qd, %qa, 128;
$Q_ahead:
	setp.ge.u64 %qp, %qsrc, %qend;
	@%qp bra $Q_meet;
	prefetch.global.L2 [%qsrc];
	add.s64 %qsrc, %qsrc, %qd;
	bra $Q_ahead;
$Q_meet:
	mul.wide.u32 %qd, %qtid, 4;
	add.s64 %qd, %qother, %qd;
	@%qcopy st.shared.u32 [%qd], %qword;
	barrier.sync 0;
	ld.shared.u32 %qa, [%qother+208];
	setp.eq.u32 %qp, %qa, 0;
	@%qp bra $Q_met;
	add.s32 %qtarget, %qtarget, %qblocks;
	@!%qfirst bra $Q_wait;
	red.release.gpu.global.add.u32 [%qcounter], 1;
$Q_spin:
	ld.acquire.gpu.global.u32 %qb, [%qcounter];
	sub.s32 %qb, %qb, %qtarget;
	setp.lt.s32 %qp, %qb, 0;
	@%qp bra $Q_spin;
$Q_wait:
	barrier.sync 0;
$Q_met:
	setp.eq.u64 %qp, %qtrace, 0;
	@%qp bra $Q_timed;
	mov.u64 %qsrc, %clock64;
	sub.s64 %qd, %qsrc, %qclock;
	mov.u64 %qclock, %qsrc;
	mul.wide.u32 %qend, %qat, 8;
	add.s64 %qend, %qend, %qtrace;
	red.global.add.u64 [%qend], %qd;
$Q_timed:
	mov.u64 %qd, %qrec;
	mov.u64 %qrec, %qother;
	mov.u64 %qother, %qd;
	setp.ne.u32 %qp, %qat, 0;
	@%qp bra $Q_advance;
	// Patch has ended: does the token happen, and where is it?
	ld.relaxed.gpu.global.u32 %qa, [%qstep+32];
	setp.ne.u32 %qp, %qa, 0;
	@%qp bra $Q_exit;
	mul.wide.u32 %qd, %qtid, 4;
	add.s64 %qsrc, %qseconds, %qd;
	@%qsecond ld.relaxed.gpu.global.u32 %qword, [%qsrc+-176];
	add.s64 %qd, %qrec, %qd;
	@%qsecond st.shared.u32 [%qd], %qword;
	barrier.sync 0;
$Q_advance:
	add.s32 %qat, %qat, 1;
	setp.le.u32 %qp, %qat, %qlast;
	@%qp bra $Q_command;
	mov.u32 %qat, 0;
	add.s32 %qtokens, %qtokens, -1;
	setp.ne.u32 %qp, %qtokens, 0;
	@%qp bra $Q_command;
$Q_exit:
	ret;
`

var (
	paramPattern  = regexp.MustCompile(`_param_(\d+)(?:\+(\d+))?`)
	pointerOf     = regexp.MustCompile(`^\s*ld\.param\.u64\s+(%rd\d+), \[\w+_param_(\d+)\];`)
	addressOf     = regexp.MustCompile(`^\s*mov\.[bu]64\s+(%rd\d+), \w+_param_(\d+);`)
	loadPattern   = regexp.MustCompile(`^(\s*(?:@!?%p\d+\s+)?)ld(?:\.volatile)?\.global(?:\.nc)?\.([.\w]+)\s+(.+), \[(%rd\d+)(?:\+(\d+))?\];`)
	positionOf    = regexp.MustCompile(`%ctaid\.([xyz])`)
	registerUse   = regexp.MustCompile(`%rd\d+`)
	localLabel    = regexp.MustCompile(`\$L_+BB`)
	unknownForms  = []string{"%nctaid", ".shared .align", ".local", "call", "exit;", "%gridid", ".param .", "trap;"}
	offsetOfParam = func(i int) int {
		switch {
		case i <= 8:
			return 8 * i
		case i < 11:
			return 128 + 8*(i-paramSecond)
		}
		return 144
	}
)

// spliced returns the body as a block of the interpreter, number n.
func (e *Entry) spliced(n int, stops bool) ([]string, error) {
	if len(e.params) != paramCount || e.params[paramCount-1].offset+32 != paramBytes {
		return nil, fmt.Errorf("ptx: entry %s has other parameters", e.Name)
	}
	for i, p := range e.params {
		if p.offset != offsetOfParam(i) {
			return nil, fmt.Errorf("ptx: entry %s: parameter %d is at %d", e.Name, i, p.offset)
		}
	}
	seconds, steps := e.pointers(paramSecond), e.pointers(paramStep)
	var out []string
	for _, l := range e.body {
		for _, form := range unknownForms {
			if strings.Contains(l, form) {
				return nil, fmt.Errorf("ptx: entry %s: %q in a body", e.Name, strings.TrimSpace(l))
			}
		}
		if m := addressOf.FindStringSubmatch(l); m != nil {
			i, _ := strconv.Atoi(m[2])
			out = append(out, fmt.Sprintf("\tadd.s64 %s, %%qrec, %d;", m[1], offsetOfParam(i)))
			continue
		}
		if strings.Contains(l, "_param_") && !strings.Contains(l, "ld.param.") {
			return nil, fmt.Errorf("ptx: entry %s: %q is no load of a parameter", e.Name, strings.TrimSpace(l))
		}
		if m := loadPattern.FindStringSubmatch(l); m != nil {
			offset, _ := strconv.Atoi(m[5])
			switch {
			case seconds[m[4]]:
				l = fmt.Sprintf("%sld.shared.%s %s, [%%qrec+%d];", m[1], m[2], m[3], RecordSecond+offset)
			case steps[m[4]] && offset == stepStop && m[2] == "u32" && !stops:
				l = fmt.Sprintf("%smov.u32 %s, 0;", m[1], m[3])
			}
		}
		if strings.Contains(l, "ld.param.") {
			l = strings.Replace(l, "ld.param.", "ld.shared.", 1)
			l = strings.Replace(l, "["+e.Name, "[", 1)
			l = paramPattern.ReplaceAllStringFunc(l, func(s string) string {
				m := paramPattern.FindStringSubmatch(s)
				i, _ := strconv.Atoi(m[1])
				more, _ := strconv.Atoi(m[2])
				return fmt.Sprintf("%%qrec+%d", offsetOfParam(i)+more)
			})
		}
		// What this kernel wrote before a barrier must not come from a cache
		// that is for memory that nobody writes.
		l = strings.ReplaceAll(l, "ld.global.nc.", "ld.global.")
		l = positionOf.ReplaceAllString(l, "%q$1")
		l = localLabel.ReplaceAllString(l, fmt.Sprintf("$$Q%d_BB", n))
		l = strings.ReplaceAll(l, "ret;", fmt.Sprintf("bra $Q_end%d;", n))
		out = append(out, l)
	}
	return out, nil
}

// pointers returns the registers that hold parameter i and are used for loads
// alone.
func (e *Entry) pointers(i int) map[string]bool {
	held := map[string]bool{}
	for _, l := range e.body {
		if m := pointerOf.FindStringSubmatch(l); m != nil && m[2] == strconv.Itoa(i) {
			held[m[1]] = true
		}
	}
	for _, l := range e.body {
		if pointerOf.MatchString(l) || strings.Contains(l, ".reg ") {
			continue
		}
		load := loadPattern.FindStringSubmatch(l)
		for _, r := range registerUse.FindAllString(l, -1) {
			if i == paramSecond && held[r] && (load == nil || load[4] != r) {
				delete(held, r)
			}
		}
	}
	return held
}
