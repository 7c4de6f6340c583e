package record

import (
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// Machine is where a round ran, and on what.
type Machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	MemoryMB   int    `json:"memory_mb"`
	Kernel     string `json:"kernel"`
	Congestion string `json:"tcp_congestion"`
	PostgreSQL string `json:"postgresql"`
	Kafka      string `json:"kafka"`
	Java       string `json:"java"`
	Go         string `json:"go"`
	Debezium   string `json:"debezium,omitempty"`
}

// Here is this machine, without the versions of the servers.
func Here() Machine {
	return Machine{
		CPU:        fieldOf("/proc/cpuinfo", "model name"),
		Cores:      runtime.NumCPU(),
		MemoryMB:   memoryMB(),
		Kernel:     text("/proc/sys/kernel/osrelease"),
		Congestion: text("/proc/sys/net/ipv4/tcp_congestion_control"),
		Java:       javaVersion(),
		Go:         runtime.Version(),
	}
}

// Key is a short name of the machine and its versions. Those of PostgreSQL and Debezium are left out: they are known only
// when something was started, and a round's parameters say which server it ran on.
func (m Machine) Key() string {
	m.PostgreSQL, m.Debezium = "", ""
	h := fnv.New32a()
	fmt.Fprintf(h, "%+v", m)
	return fmt.Sprintf("%08x", h.Sum32())
}

// Load is the load average of the last minute.
func Load() float64 {
	var l float64
	_, _ = fmt.Sscan(text("/proc/loadavg"), &l)
	return l
}

func memoryMB() int {
	var kb int
	_, _ = fmt.Sscan(fieldOf("/proc/meminfo", "MemTotal"), &kb)
	return kb / 1024
}

func text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func fieldOf(path, name string) string {
	for line := range strings.Lines(text(path)) {
		k, v, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

var quoted = regexp.MustCompile(`"([^"]+)"`)

func javaVersion() string {
	out, err := exec.Command("java", "-version").CombinedOutput()
	if err != nil {
		return ""
	}
	if m := quoted.FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return ""
}
