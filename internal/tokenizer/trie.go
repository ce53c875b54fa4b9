package tokenizer

// trie maps strings to numbers. Its memory and time are linear in the total length of the
// strings.
type trie struct {
	root   [256]int32        // children of node 0; 0 means none
	edges  *hashTable[int32] // by node<<8 | byte: the child; 0 means none
	values []int32           // by node; -1 means none
}

// newTrie returns an empty trie with memory for about n nodes.
func newTrie(n int) *trie {
	return &trie{edges: newHashTable[int32](n), values: []int32{-1}}
}

// child returns the child of node for byte b, or 0.
func (t *trie) child(node int32, b byte) int32 {
	if node == 0 {
		return t.root[b]
	}
	return t.edges.get(uint64(node)<<8 | uint64(b))
}

// add sets the value of s.
func (t *trie) add(s string, value int32) {
	node := int32(0)
	for i := range len(s) {
		next := t.child(node, s[i])
		if next == 0 {
			next = int32(len(t.values))
			t.values = append(t.values, -1)
			if node == 0 {
				t.root[s[i]] = next
			} else {
				t.edges.set(uint64(node)<<8|uint64(s[i]), next)
			}
		}
		node = next
	}
	t.values[node] = value
}

// node returns the node of s, and false if no string in the trie begins with s.
func (t *trie) node(s string) (int32, bool) {
	node := int32(0)
	for i := range len(s) {
		if node = t.child(node, s[i]); node == 0 {
			return 0, false
		}
	}
	return node, true
}

// longest returns the value and the length of the longest string in the trie that is a prefix
// of s. If there is none, the value is -1. The search begins at the given node.
func (t *trie) longest(node int32, s string) (value int32, n int) {
	value = -1
	for i := range len(s) {
		if node = t.child(node, s[i]); node == 0 {
			break
		}
		if v := t.values[node]; v >= 0 {
			value, n = v, i+1
		}
	}
	return value, n
}
