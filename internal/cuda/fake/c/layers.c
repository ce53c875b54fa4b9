// The kernels of the fake driver for experts, recurrent state and latent attention.
#include "kernels.h"

// choose lists the used experts with the largest ranks of those for which open is set, which it clears.
static void choose(uint32_t *ids, const float *ranks, uint8_t *open, uint32_t experts, uint32_t used) {
    for (uint32_t i = 0; i < used; i++) {
        uint32_t best = experts;
        for (uint32_t e = 0; e < experts; e++)
            if (open[e] && (best == experts || ranks[e] > ranks[best])) best = e;
        ids[i] = least(best, experts - 1);
        open[ids[i]] = 0;
    }
}

static void route(const launch *l) {
    PARAMS(route);
    uint8_t open[1024];
    for (uint32_t r = 0; r < rows(l); r++) {
        const float *logits = F(0) + (uint64_t)r * p->experts;
        uint32_t *ids = (uint32_t *)l->bind[1] + (uint64_t)r * p->used;
        float *weights = F(2) + (uint64_t)r * p->used, sum = 0;
        memset(open, 1, sizeof open);
        choose(ids, logits, open, p->experts, p->used);
        for (uint32_t i = 0; i < p->used; i++) sum += weights[i] = expf(logits[ids[i]] - logits[ids[0]]);
        if (l->specs[0] == PIANOLA_OVER_ALL) {
            sum = 0;
            for (uint32_t e = 0; e < p->experts; e++) sum += expf(logits[e] - logits[ids[0]]);
        }
        for (uint32_t i = 0; i < p->used; i++) weights[i] /= sum;
    }
}

// group_value returns the best rank of a group's experts, or the sum of the best two.
static float group_value(const float *ranks, uint32_t size, uint32_t best) {
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t e = 0; e < size; e++) {
        if (ranks[e] > first) {
            second = first;
            first = ranks[e];
        } else if (ranks[e] > second)
            second = ranks[e];
    }
    return best == 2 ? first + second : first;
}

static void route_scored(const launch *l) {
    PARAMS(route_scored);
    float scores[1024], ranks[1024], values[32];
    uint8_t open[1024], groups[32];
    uint32_t size = p->experts / p->groups, chosen[32];
    for (uint32_t r = 0; r < rows(l); r++) {
        const float *logits = F(0) + (uint64_t)r * p->experts;
        uint32_t *ids = (uint32_t *)l->bind[2] + (uint64_t)r * p->used;
        float *weights = F(3) + (uint64_t)r * p->used, top = -INFINITY, sum = 0;
        for (uint32_t e = 0; e < p->experts; e++) top = fmaxf(top, logits[e]);
        for (uint32_t e = 0; e < p->experts; e++) sum += scores[e] = p->sigmoid ? 1 / (1 + expf(-logits[e])) : expf(logits[e] - top);
        for (uint32_t e = 0; e < p->experts; e++) {
            if (!p->sigmoid) scores[e] /= sum;
            ranks[e] = scores[e] + (l->specs[0] ? F(1)[e] : 0);
        }
        memset(open, p->groups == 1, sizeof open);
        memset(groups, 1, sizeof groups);
        for (uint32_t g = 0; g < p->groups; g++) values[g] = group_value(ranks + g * size, size, p->best);
        choose(chosen, values, groups, p->groups, p->top_groups);
        for (uint32_t g = 0; g < p->top_groups; g++) memset(open + chosen[g] * size, 1, size);
        choose(ids, ranks, open, p->experts, p->used);
        sum = 0;
        for (uint32_t i = 0; i < p->used; i++) sum += weights[i] = scores[ids[i]];
        for (uint32_t i = 0; i < p->used; i++) weights[i] *= (l->specs[1] == PIANOLA_OVER_ALL ? p->scale : p->scale / sum) * (l->specs[2] ? F(4)[ids[i]] : 1);
    }
}

static void expert_gemv(const launch *l) {
    PARAMS(expert_gemv);
    float *x = malloc(p->in * sizeof *x), *products = malloc(p->out * sizeof *products);
    for (uint32_t at = 0; at < rows(l) * p->used; at++) {
        uint64_t expert = least(((const uint32_t *)l->bind[4])[at], p->experts - 1), from = (uint64_t)(at / p->share) * p->x_stride;
        for (uint32_t i = 0; i < p->in; i++) x[i] = l->specs[2] ? gated(l->specs[5], F(0)[from + i]) * F(1)[from + i] : F(0)[from + i];
        dots(products, l->bind[2], l->specs[0], expert * p->out * p->in, x, p->in, p->out);
        for (uint32_t o = 0; o < p->out; o++) F(5)[(uint64_t)at * p->y_stride + o] = products[o] + (l->specs[3] ? F(3)[expert * p->out + o] : 0);
    }
    free(products);
    free(x);
}

static void expert_rows(const launch *l) {
    PARAMS(expert_rows);
    const uint32_t *ids = (const uint32_t *)l->bind[0];
    uint32_t *list = (uint32_t *)l->bind[1], n = 0;
    for (uint32_t e = 0; e < p->experts; e++) {
        list[e] = n;
        for (uint32_t i = 0; i < rows(l) * p->used; i++)
            if (least(ids[i], p->experts - 1) == e) list[p->experts + 1 + n++] = i;
    }
    list[p->experts] = n;
}

static void expert_halves(const launch *l) {
    PARAMS(expert_halves);
    make_halves(l, p->in, p->x_stride, rows(l) * p->used);
}

static void expert_gemm(const launch *l) {
    PARAMS(expert_gemm);
    const uint32_t *list = (const uint32_t *)l->bind[3];
    float *x = malloc(p->in * sizeof *x), *products = malloc(p->out * sizeof *products);
    uint32_t count = rows(l) * p->used;
    for (uint64_t e = 0; e < p->experts; e++)
        for (uint32_t i = list[e]; i < least(list[e + 1], count); i++) {
            uint32_t at = least(list[p->experts + 1 + i], count - 1);
            take_halves(x, l->bind[0], p->in, halves_terms(l), at / p->share);
            dots(products, l->bind[1], l->specs[0], e * p->out * p->in, x, p->in, p->out);
            for (uint32_t o = 0; o < p->out; o++) F(4)[(uint64_t)at * p->y_stride + o] = products[o] + (l->specs[1] ? F(2)[e * p->out + o] : 0);
        }
    free(products);
    free(x);
}

static void expert_sum(const launch *l) {
    PARAMS(expert_sum);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t i = 0; i < p->n; i++) {
            float sum = 0, *to = F(2) + (uint64_t)r * p->n + i;
            for (uint32_t k = 0; k < p->used; k++) sum += F(1)[r * p->used + k] * F(0)[((uint64_t)r * p->used + k) * p->n + i];
            *to = l->specs[0] == PIANOLA_OUTPUT_ADD ? *to + sum : sum;
        }
}

static void scale_rows(const launch *l) {
    PARAMS(scale_rows);
    for (uint32_t r = 0; r < rows(l); r++) {
        uint32_t pos = many(l->specs[0]) ? record(l, r)->position : second(l, 0) + r;
        for (uint32_t i = 0; i < p->n; i++) F(0)[(uint64_t)r * p->stride + i] *= F(1)[least((pos + p->offset) / p->span, p->count - 1)];
    }
}

static void layernorm(const launch *l) {
    PARAMS(layernorm);
    for (uint32_t r = 0; r < rows(l); r++) {
        const float *x = F(0) + (uint64_t)least(second(l, 0) + r, p->x_rows - 1) * p->n;
        double mean = 0, square = 0;
        for (uint32_t i = 0; i < p->n; i++) mean += (double)x[i] / p->n;
        for (uint32_t i = 0; i < p->n; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean) / p->n;
        float s = (float)(1 / sqrt(square + p->eps));
        for (uint32_t i = 0; i < p->n; i++) F(2)[(uint64_t)r * p->n + i] = (float)(x[i] - mean) * s * F(1)[i] + F(1)[p->n + i];
    }
}

static void latent_kv(const launch *l) {
    PARAMS(latent_kv);
    uint32_t d = l->specs[0], turned = 2 * p->half_, rank = d - turned, kind = l->specs[3];
    kv_cache c = {l->bind[5], l->specs[2], 1, p->cap, d, p->first, NULL, 0};
    own_cache(&c, kind);
    kv_cache same = c;
    float row[2048];
    for (uint32_t r = 0; r < rows(l); r++) {
        if (ended(l, kind, r)) continue;
        const float *from = F(1) + (uint64_t)r * p->kv_stride, *angles = F(2) + (uint64_t)r * turned;
        turn(l, kind, r, p->tables, p->table, p->pool, &c, &same);
        memcpy(row, from + rank, turned * 4);
        rotate(row, angles, p->half_, l->specs[1]);
        norm(row + turned, from, F(3), rank, p->eps);
        cache(c, row, 0, seen(l, kind, r) - 1);
        for (uint32_t h = 0; h < p->heads; h++) {
            float *q = F(4) + ((uint64_t)r * p->heads + h) * d;
            memcpy(q, F(0) + (uint64_t)r * p->q_stride + h * (p->nope + turned) + p->nope, turned * 4);
            rotate(q, angles, p->half_, l->specs[1]);
        }
    }
}

// states are the states of a layer with recurrent state, of size floats each.
typedef struct {
    float *all;
    uint64_t size;
    uint32_t live, saved, each;
    const uint32_t *pages; // of a pooled table: those of the sequence
    uint32_t table;        // entries of pages
} states;

static float *state_at(const states *s, uint32_t pos) {
    if (s->pages) return s->all + s->size * least(s->pages[least((pos - 1) / 64, s->table - 1)], s->saved - 1);
    return s->all + s->size * (pos % 64 ? pos % s->live : s->live + pos / 64 % s->saved);
}

// keeps reports whether the state at a position is stored by a launch whose rows end at end.
static int keeps(const states *s, uint32_t pos, uint32_t end) { return s->each || pos == end || pos % 64 == 0; }

// stretch is a number of rows of one sequence: all rows, or in a batch one row.
typedef struct {
    uint32_t row, count, first; // the first row, the rows, and the position of the first one
} stretch;

// stretches returns the number of stretches. kind is the constant sequences.
static uint32_t stretches(const launch *l, uint32_t kind) { return many(kind) ? rows(l) : 1; }

// take makes s the states of the sequence of stretch i, which it returns. It has no rows if the row has stopped.
static stretch take(const launch *l, states *s, uint32_t kind, uint32_t i, uint32_t tables, uint32_t table, uint32_t pool) {
    s->pages = kind == PIANOLA_SEQUENCES_OWN ? NULL : (const uint32_t *)(l->step + tables) + sequence(l, kind, i, pool) * table;
    s->table = table;
    if (many(kind)) return (stretch){i, !ended(l, kind, i), record(l, i)->position};
    return (stretch){0, rows(l), second(l, 0)};
}

// convolve computes the rows of a channel.
static void convolve(const launch *l, const states *s, stretch a, uint32_t c) {
    PARAMS(causal_conv);
    uint32_t past = p->taps - 1, end = a.first + a.count;
    float u[8] = {0};
    for (uint32_t t = 0; a.first && t < past; t++) u[t] = state_at(s, a.first)[t * p->n + c];
    for (uint32_t r = 0; r < a.count; r++) {
        const float *x = F(0) + (uint64_t)(a.row + r) * p->x_stride + c;
        float y = l->specs[1] ? F(2)[c] : 0;
        u[past] = l->specs[0] == PIANOLA_CONV_GATED ? x[0] * x[2 * p->n] : x[0];
        for (uint32_t t = 0; t <= past; t++) y += F(1)[c * p->taps + t] * u[t];
        F(3)[(uint64_t)(a.row + r) * p->n + c] = l->specs[0] == PIANOLA_CONV_GATED ? y * x[p->n] : gated(PIANOLA_ACTIVATION_SILU, y);
        memmove(u, u + 1, past * sizeof *u);
        for (uint32_t t = 0; keeps(s, a.first + r + 1, end) && t < past; t++) state_at(s, a.first + r + 1)[t * p->n + c] = u[t];
    }
}

static void causal_conv(const launch *l) {
    PARAMS(causal_conv);
    states s = {F(4), (uint64_t)(p->taps - 1) * p->n, p->live, p->saved, p->each, NULL, 0};
    for (uint32_t i = 0; i < stretches(l, l->specs[2]); i++) {
        stretch a = take(l, &s, l->specs[2], i, p->tables, p->table, p->pool);
        for (uint32_t c = 0; c < p->n; c++) convolve(l, &s, a, c);
    }
}

// unit writes x divided by its length, times scale.
static void unit(float *y, const float *x, uint32_t n, float eps, float scale) {
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * (1 / sqrtf(sum + eps)) * scale;
}

// each_head calls one for each stretch and head. own has room for a head's state of size elements.
static void each_head(const launch *l, states *s, uint32_t heads, uint64_t size, uint32_t tables, uint32_t table, uint32_t pool,
                      void (*one)(const launch *, const states *, stretch, uint32_t h, float *own)) {
    float *own = malloc(size * sizeof *own);
    for (uint32_t i = 0; i < stretches(l, l->specs[1]); i++) {
        stretch a = take(l, s, l->specs[1], i, tables, table, pool);
        for (uint32_t h = 0; h < heads; h++) one(l, s, a, h, own);
    }
    free(own);
}

// remember computes the rows of a head.
static void remember(const launch *l, const states *s, stretch a, uint32_t h, float *own) {
    PARAMS(delta_rule);
    uint32_t d = p->key_dim, end = a.first + a.count, keys = p->key_heads * d;
    uint32_t of = p->tiled ? h % p->key_heads : h / (p->heads / p->key_heads);
    uint64_t size = (uint64_t)p->value_dim * d;
    float q[256], k[256], rate = l->specs[0] == PIANOLA_DECAY_LOG ? expf(F(2)[h]) : -F(2)[h];
    memset(own, 0, size * sizeof *own);
    if (a.first && a.count) memcpy(own, state_at(s, a.first) + h * size, size * sizeof *own);
    for (uint32_t n = 0; n < a.count; n++) {
        uint32_t r = a.row + n, after = a.first + n + 1;
        const float *x = F(0) + (uint64_t)r * p->x_stride, *gates = F(1) + (uint64_t)r * p->gate_stride;
        float decay = gates[p->heads + h] + F(2)[p->heads + h], keep = expf(-rate * (decay > 20 ? decay : log1pf(expf(decay)))), beta = 1 / (1 + expf(-gates[h]));
        unit(q, x + of * d, d, p->eps, 1 / sqrtf((float)d));
        unit(k, x + keys + of * d, d, p->eps, 1);
        for (uint32_t i = 0; i < p->value_dim; i++) {
            float *row = own + (uint64_t)i * d, kh = 0, y = 0;
            for (uint32_t j = 0; j < d; j++) kh += k[j] * row[j];
            float delta = (x[2 * keys + h * p->value_dim + i] - keep * kh) * beta;
            for (uint32_t j = 0; j < d; j++) y += q[j] * (row[j] = keep * row[j] + delta * k[j]);
            F(3)[((uint64_t)r * p->heads + h) * p->value_dim + i] = y;
        }
        if (keeps(s, after, end)) memcpy(state_at(s, after) + h * size, own, size * sizeof *own);
    }
}

static void delta_rule(const launch *l) {
    PARAMS(delta_rule);
    uint64_t size = (uint64_t)p->value_dim * p->key_dim;
    states s = {F(4), p->heads * size, p->live, p->saved, p->each, NULL, 0};
    each_head(l, &s, p->heads, size, p->tables, p->table, p->pool, remember);
}

static void sigmoid_mul(const launch *l) {
    PARAMS(sigmoid_mul);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t i = 0; i < p->n; i++) F(0)[(uint64_t)r * p->n + i] /= 1 + expf(-F(1)[(uint64_t)r * p->gate_stride + i]);
}

// scan computes the rows of a head.
static void scan(const launch *l, const states *s, stretch a, uint32_t h, float *own) {
    PARAMS(ssm_scan);
    uint32_t n = p->state_dim, end = a.first + a.count, b_at = p->heads * p->head_dim + h / (p->heads / p->groups) * n;
    uint64_t size = (uint64_t)p->head_dim * n;
    float rate = l->specs[0] == PIANOLA_DECAY_LOG ? expf(F(2)[h]) : -F(2)[h];
    memset(own, 0, size * sizeof *own);
    if (a.first && a.count) memcpy(own, state_at(s, a.first) + h * size, size * sizeof *own);
    for (uint32_t i = 0; i < a.count; i++) {
        uint32_t r = a.row + i, after = a.first + i + 1;
        const float *x = F(0) + (uint64_t)r * p->x_stride, *b = x + b_at, *c = b + p->groups * n;
        float raw = F(1)[(uint64_t)r * p->step_stride + h] + F(2)[p->heads + h];
        float length = fminf(fmaxf(raw > 20 ? raw : log1pf(expf(raw)), p->step_min), p->step_max), keep = expf(-rate * length);
        for (uint32_t e = 0; e < p->head_dim; e++) {
            float v = x[h * p->head_dim + e], y = 0, *row = own + (uint64_t)e * n;
            for (uint32_t j = 0; j < n; j++) y += c[j] * (row[j] = keep * row[j] + length * v * b[j]);
            F(3)[((uint64_t)r * p->heads + h) * p->head_dim + e] = y + F(2)[2 * p->heads + h] * v;
        }
        if (keeps(s, after, end)) memcpy(state_at(s, after) + h * size, own, size * sizeof *own);
    }
}

static void ssm_scan(const launch *l) {
    PARAMS(ssm_scan);
    uint64_t size = (uint64_t)p->head_dim * p->state_dim;
    states s = {F(4), p->heads * size, p->live, p->saved, p->each, NULL, 0};
    each_head(l, &s, p->heads, size, p->tables, p->table, p->pool, scan);
}

static void gated_norm(const launch *l) {
    PARAMS(gated_norm);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t g = 0; g < p->groups; g++) {
            float *x = F(0) + ((uint64_t)r * p->groups + g) * p->n;
            const float *gate = F(1) + (uint64_t)r * p->gate_stride + g * p->n;
            for (uint32_t i = 0; i < p->n && l->specs[0] != PIANOLA_GATE_AFTER; i++) x[i] *= gated(PIANOLA_ACTIVATION_SILU, gate[i]);
            if (l->specs[0] != PIANOLA_GATE_ALONE) norm(x, x, F(2) + g * p->n, p->n, p->eps);
            for (uint32_t i = 0; i < p->n && l->specs[0] == PIANOLA_GATE_AFTER; i++) x[i] *= gated(PIANOLA_ACTIVATION_SILU, gate[i]);
        }
}

static void scale_columns(const launch *l) {
    PARAMS(scale_columns);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t i = 0; i < p->n; i++) F(0)[(uint64_t)r * p->stride + i] *= F(1)[i];
}

// altup_route sets m to the router's result for x, a number for each copy.
static void altup_route(float *m, const float *x, const float *router, uint32_t n, uint32_t copies, float eps) {
    float *y = malloc(n * sizeof *y);
    norm(y, x, router, n, eps);
    for (uint32_t k = 0; k < copies; k++) {
        float sum = 0;
        for (uint32_t i = 0; i < n; i++) sum += y[i] * router[(1 + k) * n + i];
        m[k] = tanhf(sum / n);
    }
    free(y);
}

static float altup_coef(const float *coefs, uint32_t row, uint32_t copies, const float *m) {
    float sum = 0;
    for (uint32_t k = 0; k < copies; k++) sum += coefs[row * copies + k] * m[k];
    return sum;
}

static void altup_predict(const launch *l) {
    PARAMS(altup_predict);
    for (uint32_t r = 0; r < rows(l); r++) {
        float m[4], v[4], *x = F(0) + r * p->n, *rest = F(1) + r * (p->copies - 1) * p->n;
        altup_route(m, x, F(2), p->n, p->copies, p->eps);
        for (uint32_t i = 0; i < p->n; i++) {
            for (uint32_t j = 0; j < p->copies; j++) v[j] = j ? rest[(j - 1) * p->n + i] : x[i];
            for (uint32_t a = 0; a < p->copies; a++) {
                float sum = v[a];
                for (uint32_t j = 0; j < p->copies; j++) sum += altup_coef(F(3), a * p->copies + j, p->copies, m) * v[j];
                if (a) rest[(a - 1) * p->n + i] = sum;
                else {
                    F(4)[r * p->n + i] = sum;
                    x[i] = sum * p->x_scale;
                }
            }
        }
    }
}

static void altup_correct(const launch *l) {
    PARAMS(altup_correct);
    for (uint32_t r = 0; r < rows(l); r++) {
        float m[4], *x = F(0) + r * p->n, *rest = F(1) + r * (p->copies - 1) * p->n;
        altup_route(m, x, F(3), p->n, p->copies, p->eps);
        for (uint32_t i = 0; i < p->n; i++) {
            float d = x[i] - F(2)[r * p->n + i];
            x[i] = F(2)[r * p->n + i] + (1 + altup_coef(F(4), 0, p->copies, m)) * d;
            F(6)[r * p->n + i] = x[i] * F(5)[i];
            for (uint32_t a = 1; a < p->copies; a++) rest[(a - 1) * p->n + i] += (1 + altup_coef(F(4), a, p->copies, m)) * d;
        }
    }
}

static void altup_add(const launch *l) {
    PARAMS(altup_add);
    float *delta = malloc(p->n * sizeof *delta);
    for (uint32_t r = 0; r < rows(l); r++) {
        norm(delta, F(1) + r * p->n, F(2), p->n, p->eps);
        for (uint32_t i = 0; i < (p->copies - 1) * p->n; i++) F(0)[r * (p->copies - 1) * p->n + i] += delta[i % p->n];
    }
    free(delta);
}

static float mean_square(const float *x, uint32_t n) {
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum / n;
}

static void altup_match(const launch *l) {
    PARAMS(altup_match);
    for (uint32_t r = 0; r < rows(l); r++) {
        float *x = F(0) + r * p->n, target = sqrtf(mean_square(x, p->n));
        for (uint32_t a = 1; a < p->copies; a++) {
            float *part = F(1) + (r * (p->copies - 1) + a - 1) * p->n, factor = target / sqrtf(fmaxf(mean_square(part, p->n), p->least));
            for (uint32_t i = 0; i < p->n; i++) {
                if (p->merge) x[i] += part[i] * factor;
                else part[i] *= factor;
            }
        }
        for (uint32_t i = 0; i < p->n && p->merge; i++) x[i] /= p->copies;
    }
}

static void head_layernorm(const launch *l) {
    PARAMS(head_layernorm);
    uint32_t d = l->specs[0];
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t h = 0; h < p->heads; h++) {
            float *x = F(0) + (uint64_t)r * p->stride + h * d, mean = 0;
            for (uint32_t i = 0; i < d; i++) mean += x[i];
            mean /= d;
            for (uint32_t i = 0; i < d; i++) x[i] -= mean;
            norm(x, x, F(1) + h * d, d, p->eps);
        }
}

static void top_gates(const launch *l) {
    PARAMS(top_gates);
    for (uint32_t r = 0; r < rows(l); r++) {
        float *x = F(0) + (uint64_t)r * p->stride, mean = 0, squares = 0;
        for (uint32_t i = 0; i < p->n; i++) mean += x[i];
        mean /= p->n;
        for (uint32_t i = 0; i < p->n; i++) squares += (x[i] - mean) * (x[i] - mean);
        for (uint32_t i = 0; i < p->n; i++) x[i] = fmaxf(x[i] - mean - p->cutoff * sqrtf(squares / p->n), 0);
    }
}

#define LAYERS(X) X(altup_predict) X(altup_correct) X(altup_add) X(altup_match) X(top_gates) X(head_layernorm) X(ssm_scan) X(gated_norm) X(scale_columns) X(route) X(route_scored) X(expert_gemv) X(expert_rows) X(expert_halves) X(expert_gemm) X(expert_sum) X(scale_rows) X(layernorm) X(latent_kv) X(causal_conv) X(delta_rule) X(sigmoid_mul)
LAYERS(GUARD)

kernel layer_kernel(const char *name) {
#define ENTRY(n) {#n, run_##n},
    static const struct { const char *name; kernel run; } list[] = {LAYERS(ENTRY)};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(list[i].name, name)) return list[i].run;
    return NULL;
}
