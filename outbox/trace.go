package outbox

import "context"

// TraceHeader is the header for the trace of W3C Trace Context.
const TraceHeader = "traceparent"

type traceKey struct{}

// ContextWithTraceParent returns a context whose events carry the traceparent, as it
// came with a request, for services without a library for traces.
func ContextWithTraceParent(ctx context.Context, traceParent string) context.Context {
	return context.WithValue(ctx, traceKey{}, traceParent)
}

func fromContext(ctx context.Context) string {
	s, _ := ctx.Value(traceKey{}).(string)
	return s
}

// isTraceParent tells version-traceid-parentid-flags; later versions may go on behind.
func isTraceParent(s string) bool {
	if len(s) < 55 || len(s) > 55 && (s[:2] == "00" || s[55] != '-') || len(s) > maxText {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case i == 2, i == 35, i == 52:
			if c != '-' {
				return false
			}
		case i >= 55:
			if c <= ' ' || c > '~' {
				return false
			}
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f':
		default:
			return false
		}
	}
	return s[:2] != "ff"
}
