package relay

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/checkpoint"
)

func TestRetain_DeletesOnTheServerOfTheStreamAlone(t *testing.T) {
	began := time.Unix(1000, 5000)
	s := &session{startedAt: began}
	for name, c := range map[string]struct {
		server catalog.Server
		may    bool
	}{
		"the same":    {catalog.Server{StartedAt: began.UTC()}, true},
		"another run": {catalog.Server{StartedAt: began.Add(time.Microsecond)}, false},
		"a standby":   {catalog.Server{StartedAt: began, InRecovery: true}, false},
	} {
		if err := s.sameServer(c.server); (err == nil) != c.may {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRetain_DeletesNothingWhileAGapIsOpen(t *testing.T) {
	s := &session{r: New(Config{}, Deps{Log: zap.NewNop()})}
	if err := s.mayDelete(t.Context(), nil); err != nil {
		t.Error(err)
	}
	s.r.lastMark.Gaps = []checkpoint.Gap{{To: 1}}
	if err := s.mayDelete(t.Context(), nil); err == nil {
		t.Error("rows may be deleted although a gap is open")
	}
}

// A DELETE that a trigger or a policy leaves without effect is no success: it would be
// repeated for ever, and nobody would hear of it.
func TestRetain_TellsWhenNoRowIsDeleted(t *testing.T) {
	table := catalog.AgedTable{TableName: catalog.TableName{Schema: "public", Name: "outbox"}}
	var blocked errBlocked
	if err := noneDeleted(0, 7, table); !errors.As(err, &blocked) || !strings.Contains(err.Error(), "none of the 7 rows of public.outbox") {
		t.Errorf("got %v", err)
	}
	if err := noneDeleted(1, 7, table); err != nil {
		t.Error(err)
	}
}
