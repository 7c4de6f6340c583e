// Package proc owns the child processes of the test environment and of the demo, and the directories they write into.
//
// A child never outlives its parent: the kernel signals it when the parent dies in whatever way (panic, SIGKILL), and a
// small shell, which waits for the parent's end, then removes the run directory.
package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec says how to start a process.
type Spec struct {
	Path string
	Args []string
	Env  []string // nil: the parent's environment
	Dir  string   // working directory
	// LogFile receives standard output and standard error, appended.
	LogFile string
	// Stdout and Stderr, where set, are used instead of LogFile.
	Stdout, Stderr *os.File
	// User, where set, is who runs the process.
	User *User
	// DeathSignal is sent to the process when the parent dies; SIGKILL when zero.
	DeathSignal syscall.Signal
}

// Process is a running child. Its methods may be called from any goroutine.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed by the waiting goroutine when the process is reaped
	err  error         // what Wait returned; valid after done
}

// Start starts the process that spec names, in a process group of its own, so that Ctrl-C in a terminal reaches the
// parent only and the parent decides in which order its children stop.
func Start(spec Spec) (*Process, error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env, cmd.Dir = spec.Env, spec.Dir
	cmd.Stdout, cmd.Stderr = spec.Stdout, spec.Stderr
	if spec.Stdout == nil {
		cmd.Stdout = nil // an interface holding a nil *os.File is not nil
	}
	if spec.Stderr == nil {
		cmd.Stderr = nil
	}
	if spec.LogFile != "" && spec.Stdout == nil && spec.Stderr == nil {
		f, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("open log of %s: %w", spec.Path, err)
		}
		defer f.Close() // the child has its own copy
		cmd.Stdout, cmd.Stderr = f, f
	}
	death := spec.DeathSignal
	if death == 0 {
		death = syscall.SIGKILL
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death}
	if spec.User != nil {
		cmd.SysProcAttr.Credential = spec.User.credential()
	}
	if err := startOnLastingThread(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	p := &Process{name: spec.Path, cmd: cmd, done: make(chan struct{})}
	go p.reap() // ends with the process
	return p, nil
}

func (p *Process) reap() {
	p.err = p.cmd.Wait()
	close(p.done)
}

var (
	starterOnce sync.Once
	starterCh   chan func()
)

// startOnLastingThread starts cmd from one thread that lives as long as this process does: the kernel sends the death
// signal when the *thread* that started the child ends, and the Go runtime may end others.
func startOnLastingThread(cmd *exec.Cmd) error {
	starterOnce.Do(func() {
		starterCh = make(chan func())
		go func() { // lives as long as the process, on purpose
			runtime.LockOSThread()
			for f := range starterCh {
				f()
			}
		}()
	})
	result := make(chan error, 1)
	starterCh <- func() { result <- cmd.Start() }
	return <-result
}

// Pid is the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive tells whether the process has not been reaped yet.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends sig to the process; a process that has ended already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Wait waits for the end of the process. The error is that of ctx, or says how the process ended when its exit code was
// not 0.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s (pid %d): %w", p.name, p.Pid(), ctx.Err())
	}
}

// ExitCode is the exit code, 128 plus the signal when a signal ended the process, or -1 while it runs.
func (p *Process) ExitCode() int {
	if p.Alive() {
		return -1
	}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

// CPU is the user and system time of the process; after its end the exact one, with that of its reaped children.
func (p *Process) CPU() time.Duration {
	if !p.Alive() {
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	}
	return CPUOf(p.Pid())
}

// CPUOf is the user and system time that the running process pid has used, or 0 when it cannot be read.
func CPUOf(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	sys, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+sys) * (time.Second / 100) // USER_HZ is 100 on every Linux that Go runs on
}

// PeakRSS is the highest resident set of the process so far, in bytes (VmHWM); after its end, the kernel's ru_maxrss.
func (p *Process) PeakRSS() int64 {
	if !p.Alive() {
		if ru, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			return ru.Maxrss * 1024
		}
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb * 1024
		}
	}
	return 0
}

// Stop sends sig and waits; when ctx ends first it kills the process and says so.
func (p *Process) Stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil {
		return fmt.Errorf("signal %s (pid %d): %w", p.name, p.Pid(), err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		p.KillTree()
		return fmt.Errorf("%s (pid %d) did not end after %v and was killed: %w", p.name, p.Pid(), sig, ctx.Err())
	}
}

// KillTree kills the process and its direct children with SIGKILL and waits until all are gone.
func (p *Process) KillTree() {
	children := childrenOf(p.Pid())
	_ = p.Signal(syscall.SIGKILL)
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-p.done
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if !anyRuns(children) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// childrenOf lists the direct children of pid.
func childrenOf(pid int) []int {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, t := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// anyRuns tells whether one of the processes exists and is no zombie.
func anyRuns(pids []int) bool {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		if _, rest, ok := strings.Cut(string(b), ") "); ok && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X") {
			return true
		}
	}
	return false
}
