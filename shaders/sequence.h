// The rows of a pooled table's programs. Behind the step record, the step block has row records, which
// name the sequences of a batch's rows, and page tables (package sequence). The argument sequences is
// the constant of that name. Numbers from memory are clamped.
#ifndef PIANOLA_SEQUENCE_H
#define PIANOLA_SEQUENCE_H

#include "pianola.h"

// Positions of a KV page.
#define PIANOLA_PAGE 64

// row_record returns row record r.
static inline device pianola_row *row_record(device pianola_step *step, uint r) { return (device pianola_row *)(step + 1) + r; }

// row_stopped reports whether nothing is to be computed for row r.
static inline bool row_stopped(device pianola_step *step, uint r, uint sequences) {
    return sequences == PIANOLA_SEQUENCES_MANY && row_record(step, r)->stop != 0;
}

// row_follows reports whether row r, not the first, is at the position after that of the row before it, in the same
// sequence, as rows of a prompt are in a joint pass.
static inline bool row_follows(device pianola_step *step, uint r) {
    device const pianola_row *a = row_record(step, r - 1);
    device const pianola_row *b = row_record(step, r);
    return a->sequence == b->sequence && a->kv_len + 1 == b->kv_len && a->stop == b->stop;
}

// row_joined reports whether other rows of the pass belong to the sequence of row r.
static inline bool row_joined(device pianola_step *step, uint r) { return row_record(step, r)->joined != 0; }

// row_sequence returns the sequence of row r, one of pool.
static inline uint row_sequence(device pianola_step *step, uint r, uint sequences, uint pool) {
    if (sequences == PIANOLA_SEQUENCES_OWN) {
        return 0;
    }
    return min(sequences == PIANOLA_SEQUENCES_MANY ? row_record(step, r)->sequence : step->sequence, pool - 1);
}

// row_token returns the index of row r's token in its ring. That of row 0 is first unless rows have
// records.
static inline uint row_token(device pianola_step *step, uint r, uint sequences, uint first) {
    return sequences == PIANOLA_SEQUENCES_MANY ? row_record(step, r)->token_index : first + r;
}

// row_position returns the position of row r, from which its rotation follows.
static inline uint row_position(device pianola_step *step, uint r, uint sequences, uint first) {
    return sequences == PIANOLA_SEQUENCES_MANY ? row_record(step, r)->position : first + r;
}

// kv_pages is the page table of a sequence. A page has the rows of all heads: [heads, PIANOLA_PAGE].
struct kv_pages {
    device const uint *entries;
    uint count; // of entries
    uint last;  // the largest page number
    uint heads;
};

// row_pages returns the page table of row r's sequence. tables is the offset of the page tables in the
// step block, count their entries for each sequence, and cap the number of rows of the cache.
static inline kv_pages row_pages(device pianola_step *step, uint r, uint sequences, uint tables, uint count, uint pool, uint cap, uint heads) {
    kv_pages g = {(device const uint *)step, 1, 0, heads};
    if (sequences != PIANOLA_SEQUENCES_OWN) {
        g.entries = (device const uint *)((device const uchar *)step + tables) + ulong(row_sequence(step, r, sequences, pool)) * count;
        g.count = count;
        g.last = cap / PIANOLA_PAGE - 1;
    }
    return g;
}

// page_row returns the row of a position of a head.
static inline ulong page_row(kv_pages g, uint head, uint position) {
    const uint page = min(g.entries[min(position / PIANOLA_PAGE, g.count - 1)], g.last);
    return (ulong(page) * g.heads + head) * PIANOLA_PAGE + position % PIANOLA_PAGE;
}

// row_visible returns the number of positions that row r sees. Row 0 sees kv_len unless rows have
// records, whose sequences have pages for at most count * PIANOLA_PAGE positions.
static inline uint row_visible(device pianola_step *step, uint r, uint sequences, uint kv_len, uint count) {
    if (sequences == PIANOLA_SEQUENCES_MANY) {
        return clamp(row_record(step, r)->kv_len, 1u, count * PIANOLA_PAGE);
    }
    return max(kv_len, 1u) + r;
}

#endif
