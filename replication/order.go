package replication

// keepHeld is the largest buffer for rows held back that is kept.
const keepHeld = 1 << 20

// order hands out a logical message before the rows that were written after it.
//
// A server merges what the savepoints of a transaction wrote by position. That of a
// row is where its WAL record begins, but that of a message is where its record
// ends (logicalmsg_decode in decode.c), which is where the next one begins. So a
// message and the row right behind it have the same position, and where they are of
// different savepoints they come in either order. A COPY writes many rows by one
// record, and the message may come among them.
//
// Rows are therefore held back until something of another position comes, which
// is the end of their transaction at the latest.
type order struct {
	limit int64     // bytes that may be held; past it rows go out as they came
	held  []Message // rows of one position; their data is in buf
	buf   []byte
	out   int     // how many of held are handed out, while releasing
	after Message // what was read behind them; valid, since nothing was read since

	releasing bool
}

// next is the next message in the order in which they were written; read returns
// them as they come.
func (o *order) next(read func() (Message, error)) (Message, error) {
	m, ok := o.release()
	if ok {
		return m, nil
	}
	for {
		if !o.releasing {
			var err error
			if m, err = read(); err != nil {
				return Message{}, err
			}
		}
		o.releasing = false
		switch {
		case m.Data == nil || o.overtakes(m):
			return m, nil
		case o.fits(m):
			o.hold(m)
		case len(o.held) == 0:
			return m, nil
		default:
			o.releasing, o.after = true, m
			m, _ = o.release()
			return m, nil
		}
	}
}

// release returns a row that was held back; when there is none left while
// releasing, it is not ok and returns what was read behind them.
func (o *order) release() (m Message, ok bool) {
	if !o.releasing {
		return Message{}, false
	}
	if o.out < len(o.held) {
		o.out++
		return o.held[o.out-1], true
	}
	o.held, o.out = o.held[:0], 0
	if o.buf = o.buf[:0]; cap(o.buf) > keepHeld {
		o.buf = nil
	}
	return o.after, false
}

// overtakes tells a logical message that was written right before the rows held.
func (o *order) overtakes(m Message) bool {
	return len(o.held) > 0 && kind(m) == 'M' && m.WALStart == o.held[0].WALStart
}

// fits tells a row that is held back, alone or with those that are.
func (o *order) fits(m Message) bool {
	return kind(m) == 'I' && m.WALStart != 0 && int64(len(o.buf)+len(m.Data)) <= o.limit &&
		(len(o.held) == 0 || m.WALStart == o.held[0].WALStart)
}

// hold copies a row. What was copied before stays valid when the buffer grows.
func (o *order) hold(m Message) {
	at := len(o.buf)
	o.buf = append(o.buf, m.Data...)
	m.Data = o.buf[at:len(o.buf):len(o.buf)]
	o.held = append(o.held, m)
}

func kind(m Message) byte {
	if len(m.Data) == 0 {
		return 0
	}
	return m.Data[0]
}
