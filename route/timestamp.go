package route

// Reasons why a value is no record time. They show nothing of the value.
const (
	reasonInfinite = "it is infinite, which Kafka cannot store"
	reasonNotTime  = "it is not a date or time in ISO form (datestyle must be ISO)"
	reasonNotInt   = "it is not a whole number of 64 bits"
	reasonBefore   = "it is before 1970, which Kafka cannot store"
)

// recordTime returns the milliseconds since the Unix epoch that the text of a
// column of the given type means, or why it cannot be a record's time.
func recordTime(text []byte, typeOID uint32) (ms int64, reason string) {
	switch typeOID {
	case oidInt8, oidInt4:
		var ok bool
		if ms, ok = parseInt(text); !ok {
			return 0, reasonNotInt
		}
	default:
		if ms, reason = parseTimestamp(text); reason != "" {
			return 0, reason
		}
	}
	// Kafka takes -1 for "no time", and its clients refuse what is below zero.
	if ms < 0 {
		return 0, reasonBefore
	}
	return ms, ""
}

// parseTimestamp reads PostgreSQL's ISO form of date, timestamp and timestamptz
// into milliseconds since the Unix epoch, rounded down; without a zone it is
// UTC. The year has four digits or more, and BC follows the whole.
func parseTimestamp(s []byte) (ms int64, reason string) {
	days, micros, reason := parseDay(s)
	if reason != "" {
		return 0, reason
	}
	return days*86_400_000 + floorDiv(micros, 1000), ""
}

// recordMicros is recordTime in microseconds, for times that it can say.
func recordMicros(text []byte, typeOID uint32) (micros int64, reason string) {
	ms, reason := recordTime(text, typeOID)
	switch {
	case reason != "":
		return 0, reason
	case ms > lastMicros/1000:
		return 0, reasonLate
	case typeOID == oidInt8 || typeOID == oidInt4:
		return ms * 1000, ""
	}
	days, micros, reason := parseDay(text)
	return days*86_400_000_000 + micros, reason
}

// parseDay is parseTimestamp, in days since 1970 and microseconds of the day, which
// may be outside of it.
func parseDay(s []byte) (days, micros int64, reason string) {
	if string(s) == "infinity" || string(s) == "-infinity" {
		return 0, 0, reasonInfinite
	}
	p := scanner{s: s}
	year := p.digits(4, 7)
	p.expect('-')
	month := p.digits(2, 2)
	p.expect('-')
	day := p.digits(2, 2)
	if !p.bad && p.i < len(s) && string(s[p.i:]) != " BC" {
		p.expect(' ')
		micros = p.clock()
	}
	if p.next(' ') {
		p.expect('B')
		p.expect('C')
		if year == 0 {
			p.bad = true
		}
		year = 1 - year // 1 BC is the year 0
	} else if year == 0 {
		p.bad = true
	}
	if p.bad || p.i != len(s) || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, 0, reasonNotTime
	}
	return daysSinceEpoch(year, month, day), micros, ""
}

// clock reads hh:mm:ss, a fraction and a zone, and returns microseconds since
// the day's midnight in UTC, which may be negative.
func (p *scanner) clock() int64 {
	h := p.digits(2, 2)
	p.expect(':')
	m := p.digits(2, 2)
	p.expect(':')
	sec := p.digits(2, 2)
	if h > 23 || m > 59 || sec > 59 {
		p.bad = true
	}
	micros := ((h*60+m)*60 + sec) * 1_000_000
	if p.next('.') {
		micros += p.fraction()
	}
	sign := int64(0)
	if p.next('+') {
		sign = -1 // ahead of UTC
	} else if p.next('-') {
		sign = 1
	}
	if sign == 0 {
		return micros
	}
	zh := p.digits(2, 2)
	var zm, zs int64
	if p.next(':') {
		zm = p.digits(2, 2)
		if p.next(':') {
			zs = p.digits(2, 2)
		}
	}
	if zh > 23 || zm > 59 || zs > 59 {
		p.bad = true
	}
	return micros + sign*((zh*60+zm)*60+zs)*1_000_000
}

// scanner reads fixed forms; after the first failure bad stays set.
type scanner struct {
	s   []byte
	i   int
	bad bool
}

func (p *scanner) isDigit() bool {
	return p.i < len(p.s) && p.s[p.i] >= '0' && p.s[p.i] <= '9'
}

// digits reads a number of least to most digits; most is at most 18.
func (p *scanner) digits(least, most int) int64 {
	var n int64
	start := p.i
	for p.i-start < most && p.isDigit() {
		n = n*10 + int64(p.s[p.i]-'0')
		p.i++
	}
	if p.i-start < least {
		p.bad = true
	}
	return n
}

// fraction reads one to six digits as microseconds.
func (p *scanner) fraction() int64 {
	start := p.i
	n := p.digits(1, 6)
	for d := p.i - start; d < 6; d++ {
		n *= 10
	}
	return n
}

// next skips c and tells whether it was there.
func (p *scanner) next(c byte) bool {
	if p.i < len(p.s) && p.s[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *scanner) expect(c byte) {
	if !p.next(c) {
		p.bad = true
	}
}

func leap(year int64) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

func daysIn(year, month int64) int64 {
	switch month {
	case 2:
		if leap(year) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	default:
		return 31
	}
}

// daysSinceEpoch counts days from 1970-01-01 in the proleptic Gregorian
// calendar, in years that begin in March, so that the leap day is the last.
func daysSinceEpoch(year, month, day int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	dayOfYear := (153*(month-3)+2)/5 + day - 1
	days := year*365 + floorDiv(year, 4) - floorDiv(year, 100) + floorDiv(year, 400) + dayOfYear
	return days - 719_468 // of 1970-01-01, counted from 0000-03-01
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

// parseInt reads a decimal number as PostgreSQL prints an integer.
func parseInt(s []byte) (n int64, ok bool) {
	p := scanner{s: s}
	negative := p.next('-')
	start := p.i
	for p.isDigit() {
		d := int64(p.s[p.i] - '0')
		// Counted down, since the lowest number has no positive counterpart.
		if n < (-1<<63+d)/10 {
			return 0, false
		}
		n = n*10 - d
		p.i++
	}
	if p.i == start || p.i != len(s) {
		return 0, false
	}
	if negative {
		return n, true
	}
	if n == -1<<63 {
		return 0, false
	}
	return -n, true
}
