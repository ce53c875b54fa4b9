// The states of layers with recurrent state (package recurrent).
#ifndef PIANOLA_RECURRENT_H
#define PIANOLA_RECURRENT_H

#include "pianola.h"

// Distance of the positions at which states are saved.
#define PIANOLA_BORDER 64

// state_entry returns the entry of the state at a position in a slot of live + saved entries.
static inline uint state_entry(uint position, uint live, uint saved) {
    return position % PIANOLA_BORDER == 0 ? live + position / PIANOLA_BORDER % saved : position % live;
}

// next_stored returns the first position after another one whose state is stored. end is the position
// after the active rows.
static inline uint next_stored(uint position, uint end, uint each) {
    return each != 0 ? position + 1 : min((position / PIANOLA_BORDER + 1) * PIANOLA_BORDER, end);
}

#endif
