package outbox

// What numeric holds, and with it a number in jsonb.
const (
	maxIntegerDigits  = 131_072
	maxFractionDigits = 16_383
)

// numbersInJSONB looks at the numbers of JSON that is valid. jsonb keeps them as
// numeric, which refuses some, and prints them without an exponent: longer tells by how many bytes. 1e131071 becomes
// 128 KiB, and a row of 80 KB that no server can print any more would stop the relay for good.
func numbersInJSONB(p []byte) (longer int, ok bool) {
	for i := 0; i < len(p); {
		switch b := p[i]; {
		case b == '"':
			i = afterString(p, i)
		case b == '-' || '0' <= b && b <= '9':
			end, printed := number(p, i)
			if printed < 0 {
				return 0, false
			}
			longer += max(0, printed-(end-i))
			i = end
		default:
			i++
		}
	}
	return longer, true
}

func afterString(p []byte, i int) int {
	for i++; p[i] != '"'; i++ {
		if p[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// number returns where the number at i ends, and how long it is when it is printed;
// below 0 for one that numeric does not hold.
func number(p []byte, i int) (end, printed int) {
	zeros, zero := 0, true // before the first other digit
	digits := func() (n int) {
		for ; i < len(p) && '0' <= p[i] && p[i] <= '9'; i++ {
			n++
			if zero = zero && p[i] == '0'; zero {
				zeros++
			}
		}
		return n
	}
	sign := 0
	if p[i] == '-' {
		i, sign = i+1, 1
	}
	integer, fraction, exponent := digits(), 0, 0
	if i < len(p) && p[i] == '.' {
		i++
		fraction = digits()
	}
	if i < len(p) && (p[i] == 'e' || p[i] == 'E') {
		i++
		negative := p[i] == '-'
		if negative || p[i] == '+' {
			i++
		}
		for ; i < len(p) && '0' <= p[i] && p[i] <= '9'; i++ {
			exponent = min(exponent*10+int(p[i]-'0'), 1_000_000)
		}
		if negative {
			exponent = -exponent
		}
	}
	if zero {
		integer = 0
	} else {
		integer += exponent - zeros
	}
	integer, fraction = max(1, integer), max(0, fraction-exponent)
	if integer > maxIntegerDigits || fraction > maxFractionDigits {
		return i, -1
	}
	return i, sign + integer + min(fraction, 1) + fraction
}
