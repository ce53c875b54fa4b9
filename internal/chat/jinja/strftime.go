package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime implements Python's strftime in the C locale. It leaves unknown directives
// unchanged.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'd': "02", 'm': "01", 'y': "06", 'Y': "2006", 'H': "15", 'I': "03",
		'M': "04", 'S': "05", 'p': "PM", 'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'e': "_2", 'h': "Jan",
		'R': "15:04", 'x': "01/02/06", 'X': "15:04:05", 'c': "Mon Jan _2 15:04:05 2006",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c, bare := format[i], false
		if c == '-' && i+1 < len(format) { // "-" removes leading zeros
			i++
			c, bare = format[i], true
		}
		var s string
		switch layout, ok := layouts[c]; {
		case ok:
			s = t.Format(layout)
		case c == 'f':
			s = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case c == 'j':
			s = fmt.Sprintf("%03d", t.YearDay())
		case c == 's':
			s = fmt.Sprint(t.Unix())
		case c == 'w':
			s = fmt.Sprint(int(t.Weekday()))
		case c == 'u':
			s = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		case c == 'U': // week of the year; weeks start on Sunday or Monday
			s = fmt.Sprintf("%02d", (t.YearDay()+6-int(t.Weekday()))/7)
		case c == 'W':
			s = fmt.Sprintf("%02d", (t.YearDay()+6-(int(t.Weekday())+6)%7)/7)
		case c == 'G' || c == 'V':
			year, week := t.ISOWeek()
			if s = fmt.Sprint(year); c == 'V' {
				s = fmt.Sprintf("%02d", week)
			}
		case c == 'z' || c == 'Z': // empty for a time without a zone, as in transformers
		case c == '%':
			s = "%"
		default:
			s = "%" + string(c)
		}
		if bare && len(s) > 1 {
			s = strings.TrimPrefix(s, "0")
		}
		b.WriteString(s)
	}
	return b.String()
}
