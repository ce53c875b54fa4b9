package server

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// conns bounds the connections of a server. Connections that have no request in progress rest; when
// there are too many connections, the one that has rested longest is closed. So idle connections, however
// many a client opens, keep nobody out.
type conns struct {
	most int

	mu      sync.Mutex
	all     map[net.Conn]*list.Element // the place in resting, or nil; without those that change closes
	resting *list.List                 // of net.Conn, the longest rest first
}

func newConns(most int) *conns {
	return &conns{most: most, all: map[net.Conn]*list.Element{}, resting: list.New()}
}

// change follows a connection; it is http.Server.ConnState.
func (c *conns) change(conn net.Conn, state http.ConnState) {
	if over := c.follow(conn, state); over != nil {
		_ = over.Close() // the server's goroutine of the connection ends with the error of its Read
	}
}

// follow follows a connection, and returns one that is too many. It forgets that one: the goroutine of the
// connection, which reports StateClosed, may run much later on a busy machine.
func (c *conns) follow(conn net.Conn, state http.ConnState) (over net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.all[conn]; at != nil {
		c.resting.Remove(at)
	}
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(c.all, conn)
		return nil
	case http.StateActive:
		c.all[conn] = nil
	default:
		c.all[conn] = c.resting.PushBack(conn)
	}
	if len(c.all) <= c.most || state != http.StateNew {
		return nil
	}
	// The new connection rests too, so there is one; it goes if all others have requests in progress.
	over = c.resting.Remove(c.resting.Front()).(net.Conn)
	delete(c.all, over)
	return over
}

// len returns the number of connections.
func (c *conns) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}
