package preflight_test

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/catalog"
	"github.com/cdc-relay/cdc-relay/fault"
	"github.com/cdc-relay/cdc-relay/preflight"
)

func TestDecide_WarnsOfAMappedColumnThatIsMissing(t *testing.T) {
	w := wanted()
	w.Columns = map[catalog.TableName][]string{outbox: {"id", "body"}}
	plan, err := preflight.Decide(w, healthy(), preflight.Known{})
	if err != nil {
		t.Fatalf("rows from before the column was dropped could not be published: %v", err)
	}
	if len(plan.Warnings) != 1 || !strings.Contains(plan.Warnings[0], `no column "body"`) {
		t.Errorf("warnings %q", plan.Warnings)
	}
}

func TestDecide_TellsATableThatIsMissingFromOneThatIsNotPublished(t *testing.T) {
	w, f := wanted(), healthy()
	f.Columns = map[catalog.TableName][]string{}
	_, err := preflight.Decide(w, f, preflight.Known{})
	if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), "does not exist in database") {
		t.Errorf("missing: %v", err)
	}
	f.Columns, f.Identities.Relations = tableColumns(), nil
	_, err = preflight.Decide(w, f, preflight.Known{})
	if fault.ClassOf(err) != fault.Stop || !strings.Contains(err.Error(), `is not in publication "pub"`) {
		t.Errorf("not published: %v", err)
	}
}
