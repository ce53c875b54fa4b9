// Package fleet keeps several models in one process, within a memory budget. A model is loaded when
// somebody asks for it, once for all who ask at the same time. It stays for a while after its last
// use, and is evicted earlier if another model needs the memory.
//
// A loaded model in use is not evicted. A load that waits for memory longer than Options.Patience
// makes new callers of other models wait, until enough of those models have become idle. So no model
// can keep another one out for ever.
//
// Callers name models by the IDs and aliases of the entries, which are looked up in a table. A name
// never becomes a part of a path.
package fleet
