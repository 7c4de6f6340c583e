package inbox_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// owner is the only file that may begin and end transactions: the Runner's, through
// the caller's function.
const owner = "transaction.go"

// owning returns every place of a source that could begin or end a transaction, or get
// at the connection behind one.
func owning(name string, src any) ([]string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	// The drivers' methods, and the runner's own ends of a session.
	method := regexp.MustCompile(`^(Begin|BeginTx|BeginFunc|BeginTxFunc|Commit|Rollback|Conn|Connect|ConnectConfig|Prepare|PrepareContext|Stmt|StmtContext|endCommit|endRollback)$`)
	statement := regexp.MustCompile("^[\"`]\\s*(?i:begin|start\\s+transaction|commit|end|rollback|abort|savepoint|release|prepare)\\b[^:]*$|;\\s*(BEGIN|START|COMMIT|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE)\\b")
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if method.MatchString(n.Sel.Name) {
				found = append(found, fmt.Sprintf("%s: %s", set.Position(n.Pos()), n.Sel.Name))
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING && statement.MatchString(n.Value) {
				found = append(found, fmt.Sprintf("%s: %s", set.Position(n.Pos()), n.Value))
			}
		}
		return true
	})
	return found, nil
}

func TestSource_TransactionsAreTheCallers(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	core := false
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") || f.Name() == owner {
			continue
		}
		core = core || f.Name() == "once.go"
		found, err := owning(f.Name(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range found {
			t.Errorf("the transaction is the caller's: %s", place)
		}
	}
	if !core {
		t.Error("once.go was not read")
	}
}

// The test above can fail.
func TestSource_IsLookedThrough(t *testing.T) {
	for _, line := range []string{
		"tx.Commit(ctx)", "tx.Rollback(ctx)", "db.BeginTx(ctx, nil)", "pool.Begin(ctx)", "pgx.BeginFunc(ctx, pool, nil)", "tx.Conn()", "s.endCommit(ctx)", "f := tx.Commit; _ = f",
		`tx.Exec(ctx, "COMMIT")`, "tx.Exec(ctx, `savepoint a`)", `tx.Exec(ctx, "SELECT 1; ROLLBACK")`, `pgx.Connect(ctx, "")`,
	} {
		found, err := owning("bad.go", "package bad\nfunc f() { "+line+" }")
		if err != nil || len(found) == 0 {
			t.Errorf("not found: %s (%v)", line, err)
		}
	}
}
