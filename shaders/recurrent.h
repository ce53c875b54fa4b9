// The states of layers with recurrent state (package recurrent).
#ifndef PIANOLA_RECURRENT_H
#define PIANOLA_RECURRENT_H

#include "pianola.h"
#include "sequence.h"

// Distance of the positions at which states are saved.
#define PIANOLA_BORDER 64

// state_entry returns the entry of the state at a position in a slot of live + saved entries.
static inline uint state_entry(uint position, uint live, uint saved) {
    return position % PIANOLA_BORDER == 0 ? live + position / PIANOLA_BORDER % saved : position % live;
}

// states are the places of the states of a sequence.
struct states {
    kv_pages pages; // of a pooled table
    uint sequences, live, saved;

    // entry returns the entry of the state at a position. Position 0 has no state, and any entry.
    uint entry(uint position) const {
        if (sequences != PIANOLA_SEQUENCES_OWN) {
            return min(pages.entries[min((position - 1) / PIANOLA_PAGE, pages.count - 1)], pages.last);
        }
        return state_entry(position, live, saved);
    }
};

// row_states returns the places of the states of row r's sequence. tables, count and pool are those of
// row_pages, and sequences is the constant of that name.
static inline states row_states(device pianola_step *step, uint r, uint sequences, uint tables, uint count, uint pool, uint live, uint saved) {
    return {row_pages(step, r, sequences, tables, count, pool, saved * PIANOLA_PAGE, 1), sequences, live, saved};
}

// A stretch is a number of rows of one sequence, at consecutive positions from begin to end - 1.
struct stretch {
    uint first, rows, begin, end;
};

// row_stretch returns the stretch with row r: all rows, or in a batch that row. first is the position of row
// 0 unless rows have records.
static inline stretch row_stretch(device pianola_step *step, uint r, uint sequences, uint first, uint rows) {
    if (sequences == PIANOLA_SEQUENCES_MANY) {
        const uint at = row_position(step, r, sequences, first);
        return {r, 1, at, at + 1};
    }
    return {0, rows, first, first + rows};
}

// next_stored returns the first position after another one whose state is stored. end is the position
// after the active rows.
static inline uint next_stored(uint position, uint end, uint each) {
    return each != 0 ? position + 1 : min((position / PIANOLA_BORDER + 1) * PIANOLA_BORDER, end);
}

#endif
