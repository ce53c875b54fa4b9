package ptx

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Resident is the name of the entry that Interpreter creates: the resident kernel.
const Resident = "resident"

// The parameters of an entry, in the order of internal/shadergen: eight bindings, 64 bytes of
// parameters, and these.
const (
	paramSecond = 9
	paramStep   = 10
	ParamCount  = 12
	paramBytes  = 176
)

// ParamOffset returns the offset of parameter i in the parameters' memory.
func ParamOffset(i int) int {
	switch {
	case i <= 8:
		return 8 * i
	case i < 11:
		return 128 + 8*(i-paramSecond)
	}
	return 144
}

// Offsets in a record of the command array, which the resident kernel reads: first a command's
// arguments in the layout of its entry, then the record's own fields. The first record is the
// kernel patch's.
const (
	RecordBytes = 256

	RecordSecond   = 176 // the command's secondary bytes; only in the processor's copy
	RecordBody     = 192 // index of the entry
	RecordGridX    = 196
	RecordGridY    = 200
	RecordTiles    = 204 // threadgroups of the grid
	RecordBarrier  = 208 // not 0: wait until all earlier commands have ended
	RecordThreads  = 212 // threads of a threadgroup; the kernel's other threads wait
	RecordPrefetch = 216 // address of the bytes to prefetch for a later command
	RecordAhead    = 224 // their number, 32 bits
	RecordZero     = 232 // 0, a value that the assembler cannot know
)

// Offsets in the 64 bytes of the resident kernel's own parameters. Its bindings are the command
// array, the secondary bytes of the first command after patch, a counter that starts at 0, and
// the trace or 0.
const (
	ResidentTokens = 0 // largest number of tokens
	ResidentLast   = 4 // index of the last record
)

// stepStop is the offset of the stop flag in a step block.
const stepStop = 32

// Interpreter returns a text with one kernel, Resident, which walks an array of commands for a
// number of tokens. It contains the unchanged bodies of the entries, so that a command computes
// the same as its entry. A body finds its arguments in shared memory and its position in the
// interpreter's registers, and returns to the interpreter. Body 0 is patch. The other bodies do
// not check the stop flag, which changes only between tokens.
//
// A kernel of several threadgroups that meet at grid barriers must be launched so that all of
// them run concurrently.
func Interpreter(version, target string, bodies []*Entry, threads int) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".version %s\n.target %s\n.address_size 64\n.extern .shared .align 16 .b8 pianola_tg[];\n", version, target)
	for i, e := range bodies {
		fmt.Fprintf(&b, "// body %d %s\n", i, e.Name)
	}
	fmt.Fprintf(&b, ".visible .entry %s(\n", Resident)
	for i := range ParamCount {
		decl := fmt.Sprintf(".param .u64 p%d", i)
		switch i {
		case 8:
			decl = ".param .align 16 .b8 p8[64]"
		case 11:
			decl = ".param .align 16 .b8 p11[32]"
		}
		if i < ParamCount-1 {
			decl += ","
		}
		fmt.Fprintf(&b, "\t%s\n", decl)
	}
	fmt.Fprintf(&b, ")\n.maxntid %d, 1, 1\n.minnctapersm 1\n{\n", threads)
	places.WriteString(&b, walkStart)
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
	places.WriteString(&b, strings.NewReplacer("{waitEnd}", labelled(wait, "_end"), "{waitPatch}", labelled(wait, "_patch")).Replace(walkEnd))
	b.WriteString("}\n")
	b.WriteByte(0)
	return b.Bytes(), nil
}

// labelled returns a part of the interpreter's text with unique labels.
func labelled(text, name string) string { return strings.ReplaceAll(text, "{n}", name) }

// places are the numbers in the interpreter's text.
var places = strings.NewReplacer(
	"{second}", fmt.Sprint(RecordSecond), "{secondWord}", fmt.Sprint(RecordSecond/4), "{body}", fmt.Sprint(RecordBody), "{tiles}", fmt.Sprint(RecordTiles),
	"{barrier}", fmt.Sprint(RecordBarrier), "{threads}", fmt.Sprint(RecordThreads), "{prefetch}", fmt.Sprint(RecordPrefetch), "{ahead}", fmt.Sprint(RecordAhead),
	"{zero}", fmt.Sprint(RecordZero), "{record}", fmt.Sprint(RecordBytes), "{twoRecords}", fmt.Sprint(2*RecordBytes), "{words}", fmt.Sprint(RecordBytes/4),
	"{last}", fmt.Sprint(ResidentLast), "{stop}", fmt.Sprint(stepStop),
)

// walkStart is the interpreter's code up to the branch to a body. It keeps few values in
// registers while a body runs, so that the bodies have the others: its position, each thread's
// word of the next record, the value that the counter must reach before the command may begin
// (target), the last observed value of the counter (seen), and the command that it counts
// (counted).
const walkStart = `	.shared .align 16 .b8 q_records[{twoRecords}];
	.reg .pred %qp, %qs;
	.reg .b32 %qx, %qy, %qz, %qtile, %qtid, %qn, %qbody, %qat, %qtokens, %qtarget, %qseen, %qcounted, %qword, %qa, %qb, %qc, %qd;
	.reg .b64 %qrec, %qsrc, %qstep, %qend, %qclock;
	mov.u64 %qrec, q_records;
	ld.param.u32 %qtokens, [p8];
	setp.eq.u32 %qp, %qtokens, 0;
	@%qp bra $Q_exit;
	mov.u32 %qtarget, 0;
	mov.u32 %qseen, 0;
	mov.u32 %qcounted, 0;
	mov.u32 %qat, 0;
	// The record of patch.
	mov.u32 %qa, %tid.x;
	setp.ge.u32 %qp, %qa, {words};
	@%qp bra $Q_begun;
	ld.param.u64 %qsrc, [p0];
	mul.wide.u32 %qstep, %qa, 4;
	add.s64 %qsrc, %qsrc, %qstep;
	ld.global.u32 %qword, [%qsrc];
	add.s64 %qstep, %qrec, %qstep;
	st.shared.u32 [%qstep], %qword;
$Q_begun:
	barrier.sync 0;
	mov.u64 %qclock, %clock64;
$Q_command:
	// The next record's word; its secondary bytes only if patch is done.
	mov.u32 %qa, %tid.x;
	setp.ge.u32 %qp, %qa, {words};
	@%qp bra $Q_walk;
	add.s32 %qb, %qat, 1;
	ld.param.u32 %qc, [p8+{last}];
	setp.gt.u32 %qp, %qb, %qc;
	selp.b32 %qb, 0, %qb, %qp;
	mad.lo.s32 %qb, %qb, {words}, %qa;
	mul.wide.u32 %qend, %qb, 4;
	ld.param.u64 %qsrc, [p0];
	add.s64 %qsrc, %qsrc, %qend;
	ld.global.u32 %qword, [%qsrc];
	add.s32 %qb, %qat, -1;
	add.s32 %qc, %qc, -1;
	setp.lt.u32 %qp, %qb, %qc;
	add.s32 %qb, %qa, -{secondWord};
	setp.lt.and.u32 %qp, %qb, 4, %qp;
	@!%qp bra $Q_walk;
	ld.param.u64 %qsrc, [p1];
	mad.lo.s32 %qb, %qat, 4, %qb;
	mul.wide.u32 %qend, %qb, 4;
	add.s64 %qsrc, %qsrc, %qend;
	ld.relaxed.gpu.global.u32 %qword, [%qsrc];
$Q_walk:
	bar.warp.sync 0xffffffff;
	mov.u32 %qtile, %ctaid.x;
$Q_tile:
	ld.shared.v4.u32 {%qbody, %qa, %qb, %qc}, [%qrec+{body}];
	setp.ge.u32 %qp, %qtile, %qc;
	@%qp bra $Q_done;
	ld.shared.u32 %qn, [%qrec+{threads}];
	mov.u32 %qd, %tid.x;
	setp.ge.u32 %qp, %qd, %qn;
	@%qp bra $Q_next;
	// A body's thread is a value of this turn of the loop: what bodies make of it
	// would else be made once for all, and be in registers all the time.
	ld.shared.u32 %qz, [%qrec+{zero}];
	add.s32 %qtid, %qd, %qz;
	// Most grids have one dimension, and a division takes long.
	mov.u32 %qx, %qtile;
	mov.u32 %qy, 0;
	mov.u32 %qz, 0;
	setp.eq.u32 %qp, %qa, %qc;
	@%qp bra $Q_choose;
	rem.u32 %qx, %qtile, %qa;
	div.u32 %qc, %qtile, %qa;
	rem.u32 %qy, %qc, %qb;
	div.u32 %qz, %qc, %qb;
$Q_choose:
`

// wait makes the first thread wait until the counter reaches its target. In the first
// threadgroup it also measures the waiting time. {n} makes the labels unique.
const wait = `	setp.eq.u32 %qp, %qseen, %qtarget;
	mov.u32 %qa, %tid.x;
	setp.ne.or.u32 %qp, %qa, 0, %qp;
	@%qp bra $Q_passed{n};
	ld.param.u64 %qsrc, [p2];
$Q_spin{n}:
	ld.acquire.gpu.global.u32 %qb, [%qsrc];
	sub.s32 %qb, %qb, %qtarget;
	setp.lt.s32 %qp, %qb, 0;
	@%qp bra $Q_spin{n};
	ld.param.u64 %qend, [p3];
	setp.eq.u64 %qp, %qend, 0;
	mov.u32 %qb, %ctaid.x;
	setp.ne.or.u32 %qp, %qb, 0, %qp;
	@%qp bra $Q_passed{n};
	mov.u64 %qsrc, %clock64;
	sub.s64 %qstep, %qsrc, %qclock;
	mov.u64 %qclock, %qsrc;
	mul.wide.u32 %qsrc, %qcounted, 8;
	add.s64 %qend, %qend, %qsrc;
	red.global.add.u64 [%qend], %qstep;
$Q_passed{n}:
`

// readyInBody replaces InputsReady in a body. It skips the wait if an earlier tile of the
// command has already waited.
const readyInBody = `	setp.eq.u32 %qs, %qseen, %qtarget;
	@%qs bra $Q_ready{n};
` + wait + `	mov.u32 %qseen, %qtarget;
	bar.sync 1, %qn;
$Q_ready{n}:`

// walkEnd is the interpreter's code after a body: the command's next tile, or else the next
// record, the counter, and the prefetch for a later command. The next body begins while other
// threadgroups may still execute this command; it waits where it needs its inputs. After patch,
// all threadgroups wait here, because patch determines the token's position.
const walkEnd = `$Q_next:
	bar.warp.sync 0xffffffff;
	mov.u32 %qa, %nctaid.x;
	add.s32 %qtile, %qtile, %qa;
	ld.shared.u32 %qc, [%qrec+{tiles}];
	setp.ge.u32 %qp, %qtile, %qc;
	@%qp bra $Q_done;
	barrier.sync 0;
	bra $Q_tile;
$Q_done:
	// No threadgroup may be counted twice before all are.
{waitEnd}	mov.u32 %qseen, %qtarget;
	ld.shared.u64 %qsrc, [%qrec+{prefetch}];
	ld.shared.u32 %qc, [%qrec+{ahead}];
	cvt.u64.u32 %qend, %qc;
	add.s64 %qend, %qend, %qsrc;
	// The other half of q_records is the next record's.
	mov.u64 %qstep, q_records;
	sub.s64 %qrec, %qrec, %qstep;
	xor.b64 %qrec, %qrec, {record};
	add.s64 %qrec, %qrec, %qstep;
	mov.u32 %qd, %tid.x;
	setp.ge.u32 %qp, %qd, {words};
	mul.wide.u32 %qstep, %qd, 4;
	add.s64 %qstep, %qrec, %qstep;
	@!%qp st.shared.u32 [%qstep], %qword;
	barrier.sync 0;
	ld.shared.u32 %qa, [%qrec+{barrier}];
	setp.eq.u32 %qp, %qa, 0;
	@%qp bra $Q_counted;
	mov.u32 %qb, %nctaid.x;
	add.s32 %qtarget, %qtarget, %qb;
	mov.u32 %qcounted, %qat;
	setp.ne.u32 %qp, %qd, 0;
	@%qp bra $Q_counted;
	ld.param.u64 %qstep, [p2];
	red.release.gpu.global.add.u32 [%qstep], 1;
$Q_counted:
	mov.u32 %qb, %ctaid.x;
	mov.u32 %qc, %ntid.x;
	mad.lo.s32 %qa, %qb, %qc, %qd;
	mul.wide.u32 %qstep, %qa, 128;
	add.s64 %qsrc, %qsrc, %qstep;
	mov.u32 %qb, %nctaid.x;
	mul.lo.s32 %qa, %qb, %qc;
	mul.wide.u32 %qstep, %qa, 128;
$Q_ahead:
	setp.ge.u64 %qp, %qsrc, %qend;
	@%qp bra $Q_met;
	prefetch.global.L2 [%qsrc];
	add.s64 %qsrc, %qsrc, %qstep;
	bra $Q_ahead;
$Q_met:
	setp.ne.u32 %qp, %qat, 0;
	@%qp bra $Q_advance;
{waitPatch}	mov.u32 %qseen, %qtarget;
	barrier.sync 0;
	// Patch has ended: does the token happen, and where is it?
	ld.param.u64 %qsrc, [p10];
	ld.relaxed.gpu.global.u32 %qa, [%qsrc+{stop}];
	setp.ne.u32 %qp, %qa, 0;
	@%qp bra $Q_exit;
	add.s32 %qb, %qd, -{secondWord};
	setp.ge.u32 %qp, %qb, 4;
	@%qp bra $Q_placed;
	ld.param.u64 %qsrc, [p1];
	mul.wide.u32 %qstep, %qb, 4;
	add.s64 %qsrc, %qsrc, %qstep;
	ld.relaxed.gpu.global.u32 %qa, [%qsrc];
	add.s64 %qstep, %qrec, %qstep;
	st.shared.u32 [%qstep+{second}], %qa;
$Q_placed:
	barrier.sync 0;
$Q_advance:
	add.s32 %qat, %qat, 1;
	ld.param.u32 %qc, [p8+{last}];
	setp.le.u32 %qp, %qat, %qc;
	@%qp bra $Q_command;
	mov.u32 %qat, 0;
	add.s32 %qtokens, %qtokens, -1;
	setp.ne.u32 %qp, %qtokens, 0;
	@%qp bra $Q_command;
$Q_exit:
	ret;
`

var (
	paramPattern = regexp.MustCompile(`_param_(\d+)(?:\+(\d+))?`)
	pointerOf    = regexp.MustCompile(`^\s*ld\.param\.u64\s+(%rd\d+), \[\w+_param_(\d+)\];`)
	addressOf    = regexp.MustCompile(`^\s*mov\.[bu]64\s+(%rd\d+), \w+_param_(\d+);`)
	loadPattern  = regexp.MustCompile(`^(\s*(?:@!?%p\d+\s+)?)ld(?:\.volatile)?\.global(?:\.nc)?\.([.\w]+)\s+(.+), \[(%rd\d+)(?:\+(\d+))?\];`)
	registers    = regexp.MustCompile(`^\s*\.reg \.(\w+)\s+(%\w+)<(\d+)>;`)
	zeros        = map[string]string{"pred": "0", "b16": "0", "b32": "0", "b64": "0", "f32": "0f00000000"}
	positionOf   = regexp.MustCompile(`%ctaid\.([xyz])`)
	registerUse  = regexp.MustCompile(`%rd\d+`)
	localLabel   = regexp.MustCompile(`\$L_+BB`)
	unknownForms = []string{"%nctaid", "%ntid.y", "%ntid.z", "%tid.y", "%tid.z", "barrier.", ".shared .align", ".local", "call", "exit;", "%gridid", ".param .", "trap;"}
)

// spliced returns the body as a block of the interpreter, number n.
func (e *Entry) spliced(n int, stops bool) ([]string, error) {
	if len(e.params) != ParamCount || e.params[ParamCount-1].offset+32 != paramBytes {
		return nil, fmt.Errorf("ptx: entry %s: unexpected parameters", e.Name)
	}
	for i, p := range e.params {
		if p.offset != ParamOffset(i) {
			return nil, fmt.Errorf("ptx: entry %s: parameter %d has unexpected offset %d", e.Name, i, p.offset)
		}
	}
	seconds, steps := e.pointers(paramSecond), e.pointers(paramStep)
	var out []string
	for i, l := range e.body {
		if l == InputsReady {
			out = append(out, labelled(readyInBody, fmt.Sprintf("%d_%d", n, i)))
			continue
		}
		for _, form := range unknownForms {
			if strings.Contains(l, form) {
				return nil, fmt.Errorf("ptx: entry %s: unsupported line %q in a body", e.Name, strings.TrimSpace(l))
			}
		}
		if m := registers.FindStringSubmatch(l); m != nil {
			n, _ := strconv.Atoi(m[3])
			out = append(out, l)
			// A register that some path leaves unset would be live in the whole loop. The
			// assembler removes assignments that are never read.
			for i := 1; i < n; i++ {
				out = append(out, fmt.Sprintf("\tmov.%s %s%d, %s;", m[1], m[2], i, zeros[m[1]]))
			}
			if zeros[m[1]] == "" {
				return nil, fmt.Errorf("ptx: entry %s: registers of type %s", e.Name, m[1])
			}
			continue
		}
		if m := addressOf.FindStringSubmatch(l); m != nil {
			i, _ := strconv.Atoi(m[2])
			out = append(out, fmt.Sprintf("\tadd.s64 %s, %%qrec, %d;", m[1], ParamOffset(i)))
			continue
		}
		if strings.Contains(l, "_param_") && !strings.Contains(l, "ld.param.") {
			return nil, fmt.Errorf("ptx: entry %s: %q is not a load of a parameter", e.Name, strings.TrimSpace(l))
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
				return fmt.Sprintf("%%qrec+%d", ParamOffset(i)+more)
			})
		}
		// Memory that this kernel wrote before a barrier must not be read from the cache for
		// read-only memory.
		l = strings.ReplaceAll(l, "ld.global.nc.", "ld.global.")
		// A command may use fewer threads than the kernel has.
		l = strings.ReplaceAll(l, "%ntid.x", "%qn")
		l = strings.ReplaceAll(l, "%tid.x", "%qtid")
		l = strings.ReplaceAll(l, "bar.sync \t0;", "bar.sync \t1, %qn;")
		l = positionOf.ReplaceAllString(l, "%q$1")
		l = localLabel.ReplaceAllString(l, fmt.Sprintf("$$Q%d_BB", n))
		l = strings.ReplaceAll(l, "ret;", fmt.Sprintf("bra $Q_end%d;", n))
		out = append(out, l)
	}
	return out, nil
}

// pointers returns the registers that hold parameter i and are used only for loads.
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
