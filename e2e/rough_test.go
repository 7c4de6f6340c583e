package e2e_test

import (
	"flag"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e"
)

var blows = flag.Int("blows", 40, "how many blows TestE2E_RoughHandling deals")

// TestE2E_RoughHandling runs two relays on one slot under load and deals them
// blows: sessions ended one by one, kills, stops, pauses long enough to be taken
// over, and starts of both at once. One of them streams, and the pair heals by
// itself; a relay that is stopped says what will repeat, or ends cleanly.
func TestE2E_RoughHandling(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.sourceYAML = "  silence_timeout: 3s\n"
	r.relayYAML = "  standby_interval: 200ms\n  reconnect_min: 20ms\n  reconnect_max: 500ms\n"
	oracle := e2e.NewOracle(t, r.pg)
	audit := r.startAudit(t)
	w := startWorkload(t, r.pg, 4, 5*time.Millisecond)
	rnd := rand.New(rand.NewPCG(11, 7))
	relays := []*e2e.Relay{r.start(t), r.start(t)}
	all := relays[:2:2]
	restart := func(i int) {
		relays[i] = r.start(t)
		all = append(all, relays[i])
	}
	unclean := 0
	stop := func(i int) {
		code, log := relays[i].Terminate(t, 30*time.Second), relays[i].Log()
		early := code == 128+int(syscall.SIGTERM) && log == "" // it had not begun to take signals
		if code == 0 || strings.Contains(log, "published again") || early {
			return
		}
		unclean++
		t.Logf("a relay that was stopped ended with %d:\n%s", code, log)
	}
	end := func(where string) {
		_, _ = r.pg.TryQuery(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'cdc-relay' AND ` + where)
	}
	for range *blows {
		i := rnd.IntN(2)
		switch rnd.IntN(8) {
		case 0:
			end("backend_type = 'client backend'") // those that watch
		case 1:
			end("backend_type = 'walsender'")
		case 2:
			end("true")
		case 3:
			relays[i].Kill()
			restart(i)
		case 4:
			stop(i)
			restart(i)
		case 5: // the one that was taken over wakes up, and knows nothing of it
			relays[i].Pause(t)
			time.Sleep(time.Duration(rnd.IntN(5000)) * time.Millisecond)
			relays[i].Resume(t)
		case 6:
			relays[0].Kill()
			relays[1].Kill()
			restart(0)
			restart(1)
		case 7: // in whatever state it is by then
			relays[i].Kill()
			restart(i)
			time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
			_ = relays[i].Signal(syscall.SIGTERM)
			relays[i].WaitExit(t, 30*time.Second)
			restart(i)
		}
		time.Sleep(time.Duration(rnd.IntN(600)) * time.Millisecond)
	}
	w.Stop()
	r.waitCaughtUp(t, time.Minute)
	stop(0)
	stop(1)
	panics := 0
	for _, relay := range all {
		if log := relay.Log(); strings.Contains(log, "panic") || strings.Contains(log, "goroutine ") {
			panics++
			t.Log(log)
		}
	}
	v := r.judgeAll(t, oracle, w, audit)
	e2e.Result(t, "rough_handling", v.ok() && panics == 0 && unclean == 0 && audit.OK(), "blows", *blows, "unclean", unclean, "panics", panics,
		"committed", v.committed, "missing", v.missing, "uncommitted", v.uncommitted, "overtaken", v.overtaken, "early", v.early, "duplicates", v.duplicate)
}
