// The kernels of the fake driver: the kernels declared in internal/decl as single-threaded C,
// for weights of float32, float16 and bfloat16.
#include "kernels.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

static void embed(const launch *l) {
    PARAMS(embed);
    uint32_t kind = l->specs[2];
    for (uint32_t r = 0; r < rows(l); r++) {
        uint32_t at = many(kind) ? record(l, r)->token_index : second(l, 0) + r;
        uint32_t id = ((uint32_t *)l->bind[0])[sequence(l, kind, r, p->pool) * p->ring + least(at, p->ring - 1)];
        for (uint32_t i = 0; i < p->n; i++) F(2)[r * p->n + i] = p->scale * weight(l->bind[1], l->specs[0], (uint64_t)least(id, p->vocab - 1) * p->n + i);
    }
}

static void rope_angles(const launch *l) {
    PARAMS(rope_angles);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t i = 0; i < p->half_; i++) {
            uint32_t pos = many(l->specs[1]) ? record(l, r)->position : second(l, 0) + r;
            float a = (p->still ? -(float)(pos - least(pos, p->still - 1)) : (float)pos) * F(0)[i];
            if (l->specs[0]) a /= F(1)[i];
            F(2)[2 * (r * p->half_ + i)] = cosf(a) * p->attn_factor;
            F(2)[2 * (r * p->half_ + i) + 1] = sinf(a) * p->attn_factor;
        }
}

static float squares(const float *x, uint32_t n) {
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

void norm(float *out, const float *x, const float *w, uint32_t n, float eps) {
    float s = 1 / sqrtf(squares(x, n) / n + eps);
    for (uint32_t i = 0; i < n; i++) out[i] = x[i] * w[i] * s;
}

// factor returns a parameter for which 0 stands for 1.
static float factor(float v) { return v != 0 ? v : 1; }

// scaled is norm times a factor.
static void scaled(float *out, const float *x, const float *w, uint32_t n, float eps, float scale) {
    norm(out, x, w, n, eps);
    for (uint32_t i = 0; i < n; i++) out[i] *= factor(scale);
}

static void rmsnorm(const launch *l) {
    PARAMS(rmsnorm);
    for (uint32_t r = 0; r < rows(l); r++) scaled(F(2) + r * p->n, F(0) + (uint64_t)least(second(l, 0) + r, p->x_rows - 1) * p->n, F(1), p->n, p->eps, p->scale);
}

static void add_rmsnorm(const launch *l) {
    PARAMS(add_rmsnorm);
    for (uint32_t i = 0; i < rows(l) * p->n; i++) F(0)[i] += factor(p->delta_scale) * F(1)[i];
    for (uint32_t r = 0; r < rows(l); r++) scaled(F(3) + r * p->n, F(0) + r * p->n, F(2), p->n, p->eps, p->scale);
}

static void add(const launch *l) {
    PARAMS(add);
    for (uint32_t i = 0; i < rows(l) * p->n; i++) F(0)[i] += factor(p->delta_scale) * F(1)[i];
}

float gated(uint32_t activation, float x) {
    if (activation == PIANOLA_ACTIVATION_GELU_TANH) return x / 2 * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
    if (activation == PIANOLA_ACTIVATION_GELU) return x / 2 * (1 + erff(x * 0.70710678f));
    if (activation == PIANOLA_ACTIVATION_RELU_SQUARED) return x > 0 ? x * x : 0;
    return x / (1 + expf(-x));
}

static void activate(const launch *l) {
    PARAMS(activate);
    for (uint32_t i = 0; i < rows(l) * p->n; i++) F(0)[i] = gated(l->specs[0], F(0)[i]);
}

static void soft_cap(const launch *l) {
    PARAMS(soft_cap);
    for (uint32_t i = 0; i < rows(l) * p->n; i++) F(0)[i] = p->cap * tanhf(F(0)[i] / p->cap);
}

static void norm_add(const launch *l) {
    PARAMS(norm_add);
    float *delta = malloc(p->n * sizeof *delta);
    for (uint32_t r = 0; r < rows(l); r++) {
        norm(delta, F(1) + r * p->n, F(2), p->n, p->eps);
        for (uint32_t i = 0; i < p->n; i++) F(0)[r * p->n + i] += delta[i];
        if (l->specs[0]) norm(F(4) + r * p->n, F(0) + r * p->n, F(3), p->n, p->eps);
    }
    free(delta);
}

// The dot product of one row is computed in 16 sums, which are added one after another.
enum { SUMS = 16, TOGETHER = 8 };

// sums adds the products of n weights, beginning with element at, to 16 sums.
static void sums(float sum[SUMS], const uint8_t *w, uint32_t type, uint64_t at, const float *x, uint32_t n) {
    uint32_t i = 0;
#ifdef __F16C__
    // The fast paths, since compilers do not vectorise the conversions.
    __m256 a = _mm256_setzero_ps(), b = a;
    if (type == F16) {
        const _Float16 *v = (const _Float16 *)w + at;
        for (; i + SUMS <= n; i += SUMS) {
            a = _mm256_add_ps(a, _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128((const void *)(v + i))), _mm256_loadu_ps(x + i)));
            b = _mm256_add_ps(b, _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128((const void *)(v + i + 8))), _mm256_loadu_ps(x + i + 8)));
        }
    } else if (type == F32) {
        const float *v = (const float *)w + at;
        for (; i + SUMS <= n; i += SUMS) {
            a = _mm256_add_ps(a, _mm256_mul_ps(_mm256_loadu_ps(v + i), _mm256_loadu_ps(x + i)));
            b = _mm256_add_ps(b, _mm256_mul_ps(_mm256_loadu_ps(v + i + 8), _mm256_loadu_ps(x + i + 8)));
        }
    }
    _mm256_storeu_ps(sum, a);
    _mm256_storeu_ps(sum + 8, b);
#else
    memset(sum, 0, SUMS * sizeof *sum);
#endif
    for (; i < n; i++) sum[i % SUMS] += weight(w, type, at + i) * x[i];
}

void dots(float *y, const uint8_t *w, uint32_t type, uint64_t at, const float *x, uint32_t n, uint32_t count) {
    // The sums of several rows are added together, because each addition waits for the one before it.
    float sum[TOGETHER][SUMS] = {0};
    for (uint32_t o = 0; o < count; o += TOGETHER) {
        float all[TOGETHER] = {0};
        for (uint32_t k = 0; k < TOGETHER && o + k < count; k++) sums(sum[k], w, type, at + (uint64_t)(o + k) * n, x, n);
        for (int j = 0; j < SUMS; j++)
            for (int k = 0; k < TOGETHER; k++) all[k] += sum[k][j];
        memcpy(y + o, all, least(TOGETHER, count - o) * sizeof *y);
    }
}

// Attention splits: the number of positions per split, and the merging of a head's splits.
static uint32_t split_each(uint32_t visible, uint32_t splits, uint32_t span) {
    uint32_t n = 1;
    while (2 * n <= splits) n *= 2;
    uint32_t each = ((visible + n - 1) / n + 15) / 16 * 16;
    return each > span ? each : span;
}

static void merge(float *out, const float *values, const float *states, uint32_t splits, uint32_t span, uint32_t window, uint32_t len, uint32_t d) {
    uint32_t visible = window ? least(len, window) : len, each = split_each(visible, splits, span);
    double acc[1024] = {0}, m = -1e300, sum = 0;
    for (uint32_t s = 0; s < splits && s * each < visible; s++)
        if (states[2 * s] > m) m = states[2 * s];
    for (uint32_t s = 0; s < splits && s * each < visible; s++) {
        double f = exp(states[2 * s] - m);
        for (uint32_t i = 0; i < d; i++) acc[i] += values[s * d + i] * f;
        sum += states[2 * s + 1] * f;
    }
    for (uint32_t i = 0; i < d; i++) out[i] = sum > 0 ? (float)(acc[i] / sum) : 0;
}

static void gemv(const launch *l) {
    PARAMS(gemv);
    enum { PLAIN, SILU, NORM, MERGE };
    float *x = malloc(p->in * sizeof *x), *products = malloc(p->out * sizeof *products);
    for (uint32_t r = 0; r < rows(l); r++) {
        const float *in = F(0) + (uint64_t)r * p->x_stride;
        for (uint32_t i = 0; i < p->in; i++) x[i] = l->specs[2] == SILU ? gated(l->specs[6], in[i]) * F(1)[(uint64_t)r * p->x_stride + i] : in[i];
        if (l->specs[2] == NORM) norm(x, in, F(1), p->in, p->eps);
        for (uint32_t h = 0; l->specs[2] == MERGE && h < p->heads; h++)
            merge(x + h * p->head_dim, F(0) + h * p->splits * p->head_dim, F(1) + 2 * h * p->splits, p->splits, p->span, p->window, second(l, 4) + second(l, 8), p->head_dim);
        dots(products, l->bind[2], l->specs[0], 0, x, p->in, p->out);
        float *y = F(4) + (uint64_t)r * p->y_stride;
        for (uint32_t o = 0; o < p->out; o++) products[o] += (l->specs[3] ? F(3)[o] : 0) + (l->specs[5] == PIANOLA_OUTPUT_ADD ? y[o] : 0);
        if (l->specs[5] != PIANOLA_OUTPUT_GATED) memcpy(y, products, p->out * sizeof *y);
        for (uint32_t o = 0; l->specs[5] == PIANOLA_OUTPUT_GATED && o < p->out / 2; o++) y[o] = gated(l->specs[6], products[o]) * products[p->out / 2 + o];
    }
    free(products);
    free(x);
}

static void head_norm(const launch *l) {
    PARAMS(head_norm);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t h = 0; h < p->heads; h++) {
            float *x = F(0) + (uint64_t)r * p->stride + h * l->specs[0];
            norm(x, x, F(1), l->specs[0], p->eps);
        }
}

void rotate(float *x, const float *angles, uint32_t half, uint32_t layout) {
    for (uint32_t i = 0; i < half; i++) {
        float *a = x + (layout ? 2 * i : i), *b = x + (layout ? 2 * i + 1 : i + half);
        float c = angles[2 * i], s = angles[2 * i + 1], u = *a, v = *b;
        *a = u * c - v * s;
        *b = u * s + v * c;
    }
}

static void rope(const launch *l) {
    PARAMS(rope);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t h = 0; h < p->heads; h++) rotate(F(0) + (uint64_t)r * p->stride + h * l->specs[0], F(1) + (uint64_t)r * p->half_ * 2, p->half_, l->specs[1]);
}

void own_cache(kv_cache *c, uint32_t kind) {
    if (kind != PIANOLA_SEQUENCES_OWN) return;
    const cache_record *r = (const cache_record *)c->mem;
    c->cap = r->rows;
    c->mem = device_memory(r->at, (uint64_t)c->heads * c->cap * c->d * (c->q8 ? 1 : 2));
}

void turn(const launch *l, uint32_t kind, uint32_t r, uint32_t tables, uint32_t table, uint32_t pool, kv_cache *k, kv_cache *v) {
    if (kind == PIANOLA_SEQUENCES_OWN) return;
    k->pages = v->pages = (const uint32_t *)(l->step + tables) + sequence(l, kind, r, pool) * table;
    k->table = v->table = table;
}

// element returns the index of the first element of a position.
static uint64_t element(kv_cache c, uint32_t head, uint32_t pos) {
    if (c.pages) {
        uint64_t page = least(c.pages[least(pos / 64, c.table - 1)], c.cap / 64 - 1);
        return ((page * c.heads + head) * 64 + pos % 64) * c.d;
    }
    uint32_t row = pos < c.first ? pos : c.first + (pos - c.first) % (c.cap - c.first);
    return ((uint64_t)head * c.cap + row) * c.d;
}

static _Float16 *scales(kv_cache c, uint64_t at) { return (_Float16 *)(c.mem + (uint64_t)c.heads * c.cap * c.d) + at / 32; }

void cache(kv_cache c, const float *x, uint32_t head, uint32_t pos) {
    uint64_t at = element(c, head, pos);
    for (uint32_t i = 0; i < c.d && !c.q8; i++) ((_Float16 *)c.mem)[at + i] = (_Float16)x[i];
    for (uint32_t b = 0; b < c.d && c.q8; b += 32) {
        float most = 0;
        for (uint32_t i = b; i < b + 32; i++) most = fmaxf(most, fabsf(x[i]));
        float scale = most / 127;
        *scales(c, at + b) = (_Float16)scale;
        for (uint32_t i = b; i < b + 32; i++) ((int8_t *)c.mem)[at + i] = (int8_t)(scale > 0 ? nearbyintf(x[i] / scale) : 0);
    }
}

// cached sets x to the elements of a position.
static void cached(float *x, kv_cache c, uint32_t head, uint32_t pos) {
    uint64_t at = element(c, head, pos);
    uint32_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= c.d && !c.q8; i += 8) _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const _Float16 *)c.mem + at + i))));
#endif
    for (; i < c.d && !c.q8; i++) x[i] = (float)((_Float16 *)c.mem)[at + i];
    for (uint32_t b = 0; b < c.d && c.q8; b += 32) {
        float scale = (float)*scales(c, at + b);
        for (uint32_t j = b; j < b + 32; j++) x[j] = (float)((int8_t *)c.mem)[at + j] * scale;
    }
}

static void kv_write(const launch *l) {
    PARAMS(kv_write);
    uint32_t d = l->specs[0];
    kv_cache k = {l->bind[2], l->specs[1], p->kv_heads, p->cap, d, p->first, NULL, 0}, v = k;
    v.mem = l->bind[3];
    own_cache(&k, l->specs[2]), own_cache(&v, l->specs[2]);
    for (uint32_t r = 0; r < rows(l); r++) {
        turn(l, l->specs[2], r, p->tables, p->table, p->pool, &k, &v);
        for (uint32_t h = 0; h < p->kv_heads && !ended(l, l->specs[2], r); h++) {
            cache(k, F(0) + (uint64_t)r * p->k_stride + h * d, h, seen(l, l->specs[2], r) - 1);
            cache(v, F(1) + (uint64_t)r * p->v_stride + h * d, h, seen(l, l->specs[2], r) - 1);
        }
    }
}

static void qk_rope_kv(const launch *l) {
    PARAMS(qk_rope_kv);
    uint32_t d = l->specs[0];
    float x[1024];
    kv_cache k = {l->bind[6], l->specs[3], p->kv_heads, p->cap, d, p->first, NULL, 0}, v = k;
    v.mem = l->bind[7];
    own_cache(&k, l->specs[4]), own_cache(&v, l->specs[4]);
    for (uint32_t r = 0; r < rows(l); r++) {
        const float *angles = F(3) + (uint64_t)r * p->half_ * 2;
        uint32_t pos = seen(l, l->specs[4], r) - 1;
        if (ended(l, l->specs[4], r) || (p->joined && !joined(l, r))) continue;
        turn(l, l->specs[4], r, p->tables, p->table, p->pool, &k, &v);
        for (uint32_t h = 0; h < p->heads + p->kv_heads; h++) {
            uint32_t is_k = h >= p->heads, kh = h - p->heads;
            const float *in = is_k ? F(1) + (uint64_t)r * p->k_stride + kh * d : F(0) + (uint64_t)r * p->q_stride + h * d;
            memcpy(x, in, d * 4);
            if (l->specs[2]) norm(x, in, F(4) + is_k * d, d, p->eps);
            rotate(x, angles, p->half_, l->specs[1]);
            if (is_k) {
                cache(k, x, kh, pos);
                cache(v, F(2) + (uint64_t)r * p->v_stride + kh * d, kh, pos);
            } else
                memcpy(F(5) + ((uint64_t)r * p->heads + h) * d, x, d * 4);
        }
    }
}

// positions is the range of positions of a row that a threadgroup of attention processes.
// attend processes it for one head.
typedef struct {
    uint32_t begin, end, split;
} positions;

static positions part(uint32_t end, uint32_t windowed, uint32_t window, uint32_t split, uint32_t s, uint32_t splits, uint32_t span) {
    positions a = {windowed && end > window ? end - window : 0, end, split};
    if (split) {
        uint32_t each = split_each(a.end - a.begin, splits, span);
        a.begin += s * each;
        a.end = least(a.end, a.begin + each);
    }
    return a;
}

// attend processes the positions of a with q, and the positions before first with turned. It computes the
// scores of several positions together, because each addition waits for the one before it.
static void attend(float *out, float *state, const float *q, const float *turned, uint32_t first, kv_cache k, kv_cache v, uint32_t head, positions a, float scale, float cap) {
    enum { NEXT = 8 };
    double acc[1024], m = -1e300, sum = 0;
    const uint32_t d = k.d;
    if (a.split && a.begin >= a.end) return;
    memset(acc, 0, d * sizeof *acc);
    for (uint32_t pos = first ? 0 : a.begin; pos < a.end;) {
        uint32_t list[NEXT], n = 0;
        float x[NEXT][1024];
        double scores[NEXT] = {0};
        if (pos >= first && pos < a.begin) pos = a.begin;
        const float *with = pos < first ? turned : q;
        for (uint32_t end = least(a.end, pos < first ? first : a.end); n < NEXT && pos < end; pos++) {
            list[n] = pos;
            cached(x[n++], k, head, pos);
        }
        for (uint32_t j = n; j < NEXT; j++) memset(x[j], 0, d * sizeof **x);
        for (uint32_t i = 0; i < d; i++)
            for (uint32_t j = 0; j < NEXT; j++) scores[j] += (double)with[i] * (double)x[j][i];
        for (uint32_t j = 0; j < n; j++) {
            double score = scores[j] * scale;
            if (cap > 0) score = cap * tanhf(score / cap);
            double top = score > m ? score : m, shrink = exp(m - top), w = exp(score - top);
            cached(x[j], v, head, list[j]);
            for (uint32_t i = 0; i < d; i++) acc[i] = acc[i] * shrink + w * (double)x[j][i];
            sum = sum * shrink + w;
            m = top;
        }
    }
    for (uint32_t i = 0; i < d; i++) out[i] = (float)(a.split || sum == 0 ? acc[i] : acc[i] / sum);
    if (a.split) state[0] = (float)m, state[1] = (float)sum;
}

static void attn(const launch *l) {
    PARAMS(attn);
    uint32_t d = l->specs[0], split = l->specs[2], parts = p->heads * p->splits, sinks = l->specs[4];
    kv_cache k = {l->bind[1], l->specs[3], p->kv_heads, p->cap, d, p->first, NULL, 0}, v = k;
    v.mem = l->bind[2];
    own_cache(&k, l->specs[7]), own_cache(&v, l->specs[7]);
    float turned[1024];
    for (uint32_t r = 0; r < rows(l); r++) {
        turn(l, l->specs[7], r, p->tables, p->table, p->pool, &k, &v);
        for (uint32_t h = 0; h < p->heads && !ended(l, l->specs[7], r); h++) {
            const float *q = F(0) + (uint64_t)r * p->q_stride + h * d;
            memcpy(turned, q, d * 4);
            if (sinks) rotate(turned, F(4) + (uint64_t)r * p->half_ * 2, p->half_, l->specs[5]);
            for (uint32_t s = 0; s < p->splits; s++) {
                float *out = F(3) + (uint64_t)r * parts * (d + 2 * split);
                uint32_t i = h * p->splits + s;
                attend(out + i * d, out + parts * d + 2 * i, q, turned, sinks ? p->first : 0, k, v, h / (p->heads / p->kv_heads),
                       part(seen(l, l->specs[7], r), l->specs[1], p->window, split, s, p->splits, p->span), p->scale, p->soft_cap);
            }
        }
    }
}

// A row of halves consists of n float16, n more if the constant act says that there are two terms, and the unit.
static uint32_t halves_columns(uint32_t in) { return (in + 63) / 64 * 64; }
uint32_t halves_terms(const launch *l) { return l->specs[2] == PIANOLA_ACT_F16 ? 1 : 2; }
static uint8_t *halves_row(uint8_t *b, uint32_t in, uint32_t terms, uint32_t r) { return b + (uint64_t)r * (2 * terms * halves_columns(in) + 128); }

// put_attention writes the elements of a head of row r with the unit 1.
static void put_attention(uint8_t *b, const float *v, uint32_t d, uint32_t head, uint32_t heads, uint32_t r) {
    uint8_t *row = halves_row(b, heads * d, 1, r);
    for (uint32_t i = 0; i < d; i++) ((_Float16 *)row)[head * d + i] = (_Float16)v[i];
    *(float *)(row + 2 * halves_columns(heads * d)) = 1;
}

static void attn_tile(const launch *l) {
    PARAMS(attn_tile);
    uint32_t d = l->specs[0];
    kv_cache k = {l->bind[1], l->specs[2], p->kv_heads, p->cap, d, 0, NULL, 0}, v = k;
    v.mem = l->bind[2];
    own_cache(&k, l->specs[5]), own_cache(&v, l->specs[5]);
    for (uint32_t r = 0; r < rows(l); r++) {
        if (ended(l, l->specs[5], r) || (p->joined && !joined(l, r))) continue;
        turn(l, l->specs[5], r, p->tables, p->table, p->pool, &k, &v);
        for (uint32_t h = 0; h < p->heads; h++) {
            const float *q = F(0) + (uint64_t)r * p->q_stride + h * d;
            float x[1024], *out = l->specs[6] ? x : F(3) + ((uint64_t)r * p->heads + h) * d;
            attend(out, NULL, q, q, 0, k, v, h / (p->heads / p->kv_heads),
                   part(seen(l, l->specs[5], r), l->specs[1], p->window, 0, 0, 1, 0), p->scale, p->soft_cap);
            if (l->specs[6]) put_attention(l->bind[5], x, d, h, p->heads, r);
        }
    }
}

static void rope_attn_tile(const launch *l) {
    PARAMS(rope_attn_tile);
    uint32_t d = l->specs[0];
    float x[1024], y[1024];
    kv_cache k = {l->bind[5], l->specs[4], p->kv_heads, p->cap, d, 0, NULL, 0}, v = k;
    v.mem = l->bind[6];
    own_cache(&k, l->specs[7]), own_cache(&v, l->specs[7]);
    for (uint32_t r = 0; r < rows(l); r++) {
        const float *angles = F(3) + (uint64_t)r * p->half_ * 2;
        uint32_t len = seen(l, l->specs[7], r);
        if (ended(l, l->specs[7], r) || (many(l->specs[7]) && joined(l, r))) continue;
        turn(l, l->specs[7], r, p->tables, p->table, p->pool, &k, &v);
        for (uint32_t i = 0; i < p->kv_heads + p->heads; i++) {
            uint32_t is_k = i < p->kv_heads, h = is_k ? i : i - p->kv_heads;
            const float *in = is_k ? F(1) + (uint64_t)r * p->kv_stride + h * d : F(0) + (uint64_t)r * p->q_stride + h * d;
            memcpy(x, in, d * 4);
            if (l->specs[3]) norm(x, in, F(4) + is_k * d, d, p->eps);
            rotate(x, angles, p->half_, l->specs[2]);
            if (is_k) {
                cache(k, x, h, len - 1);
                cache(v, F(2) + (uint64_t)r * p->kv_stride + h * d, h, len - 1);
                continue;
            }
            attend(y, NULL, x, x, 0, k, v, h / (p->heads / p->kv_heads), part(len, l->specs[1], p->window, 0, 0, 1, 0), p->scale, p->soft_cap);
            put_attention(l->bind[7], y, d, h, p->heads, r);
        }
    }
}

static void attn_chunk(const launch *l) {
    PARAMS(attn_chunk);
    uint32_t d = l->specs[0];
    kv_cache k = {l->bind[1], l->specs[2], p->kv_heads, p->cap, d, 0, NULL, 0}, v = k;
    v.mem = l->bind[2];
    own_cache(&k, l->specs[4]), own_cache(&v, l->specs[4]);
    for (uint32_t r = 0; r < rows(l); r++) {
        turn(l, l->specs[4], r, p->tables, p->table, p->pool, &k, &v);
        for (uint32_t h = 0; h < p->heads && !ended(l, l->specs[4], r); h++) {
            const float *q = F(0) + (uint64_t)r * p->q_stride + h * d;
            positions a = {0, seen(l, l->specs[4], r), 0};
            a.begin = (a.end - 1) / p->window * p->window;
            attend(F(3) + ((uint64_t)r * p->heads + h) * d, NULL, q, q, 0, k, v, h / (p->heads / p->kv_heads), a, p->scale, p->soft_cap);
        }
    }
}

static void rope_attn(const launch *l) {
    PARAMS(rope_attn);
    uint32_t d = l->specs[0], split = l->specs[2], parts = p->heads * p->splits, len = second(l, 4) + second(l, 8);
    kv_cache k = {l->bind[5], l->specs[5], p->kv_heads, p->cap, d, 0, NULL, 0}, v = k;
    v.mem = l->bind[6];
    own_cache(&k, PIANOLA_SEQUENCES_OWN), own_cache(&v, PIANOLA_SEQUENCES_OWN);
    float x[1024];
    for (uint32_t h = 0; h < p->kv_heads; h++) {
        memcpy(x, F(1) + h * d, d * 4);
        if (l->specs[4]) norm(x, F(1) + h * d, F(4) + d, d, p->eps);
        rotate(x, F(3), p->half_, l->specs[3]);
        cache(k, x, h, len - 1);
        cache(v, F(2) + h * d, h, len - 1);
    }
    for (uint32_t h = 0; h < p->heads; h++) {
        memcpy(x, F(0) + h * d, d * 4);
        if (l->specs[4]) norm(x, F(0) + h * d, F(4), d, p->eps);
        rotate(x, F(3), p->half_, l->specs[3]);
        for (uint32_t s = 0; s < p->splits; s++) {
            uint32_t i = h * p->splits + s;
            attend(F(7) + i * d, F(7) + parts * d + 2 * i, x, x, 0, k, v, h / (p->heads / p->kv_heads),
                   part(len, l->specs[1], p->window, split, s, p->splits, p->span), p->scale, p->soft_cap);
        }
    }
}

static void attn_merge(const launch *l) {
    PARAMS(attn_merge);
    uint32_t d = l->specs[0], parts = p->heads * p->splits;
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t h = 0; h < p->heads; h++) {
            const float *part = F(0) + (uint64_t)r * parts * (d + 2);
            merge(F(1) + ((uint64_t)r * p->heads + h) * d, part + h * p->splits * d, part + parts * d + 2 * h * p->splits, p->splits, p->span, p->window,
                  second(l, 4) + r, d);
        }
}

static void silu_mul(const launch *l) {
    PARAMS(silu_mul);
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t i = 0; i < p->n; i++) F(2)[r * p->n + i] = gated(l->specs[0], F(0)[(uint64_t)r * p->stride + i]) * F(1)[(uint64_t)r * p->stride + i];
}

// put_halves converts v to row r of b. Here rows for gemm_few are one after the other too.
static void put_halves(uint8_t *b, const float *v, uint32_t in, uint32_t terms, uint32_t r) {
    uint32_t n = halves_columns(in);
    _Float16 *to = (_Float16 *)halves_row(b, in, terms, r);
    float most = 0x1p-95f;
    for (uint32_t i = 0; i < in; i++) most = fmaxf(most, fabsf(v[i]));
    float unit = ldexpf(1, ilogbf(most) - 10);
    for (uint32_t i = 0; i < n; i++) {
        float x = i < in ? v[i] / unit : 0;
        to[i] = (_Float16)x;
        if (terms == 2) to[n + i] = (_Float16)(x - (float)to[i]);
    }
    memcpy(to + terms * n, &unit, 4);
}

void take_halves(float *x, uint8_t *b, uint32_t in, uint32_t terms, uint32_t r) {
    uint32_t n = halves_columns(in);
    const _Float16 *row = (const _Float16 *)halves_row(b, in, terms, r);
    float unit;
    memcpy(&unit, row + terms * n, 4);
    for (uint32_t i = 0; i < in; i++) x[i] = ((float)row[i] + (terms == 2 ? (float)row[n + i] : 0)) * unit;
}

void make_halves(const launch *l, uint32_t in, uint32_t x_stride, uint32_t count) {
    float *v = malloc(in * sizeof *v);
    for (uint32_t r = 0; r < count; r++) {
        for (uint32_t i = 0; i < in; i++) {
            uint64_t at = (uint64_t)r * x_stride + i;
            v[i] = l->specs[0] ? gated(l->specs[1], F(0)[at]) * F(1)[at] : F(0)[at];
        }
        put_halves(l->bind[2], v, in, halves_terms(l), r);
    }
    free(v);
}

static void halves(const launch *l) {
    PARAMS(halves);
    make_halves(l, p->in, p->x_stride, rows(l));
}

static void add_rmsnorm_halves(const launch *l) {
    PARAMS(add_rmsnorm_halves);
    float *v = malloc(p->n * sizeof *v);
    uint32_t parts = p->segments ? p->segments : 1;
    for (uint32_t i = 0; i < rows(l) * p->n; i++) {
        float delta = 0;
        for (uint32_t s = 0; s < parts; s++) delta += F(1)[(uint64_t)(i / p->n * parts + s) * p->n + i % p->n];
        F(0)[i] += factor(p->delta_scale) * delta;
    }
    for (uint32_t r = 0; r < rows(l); r++) {
        scaled(v, F(0) + r * p->n, F(2), p->n, p->eps, p->scale);
        put_halves(l->bind[3], v, p->n, 1, r);
    }
    free(v);
}

// input sets x to row r of the input of gemm_halves or gemm_few, whose parameters begin alike. The rows of a
// scaled input, too, are one after the other here, and the first part of a row has the squares of all of them.
static void input(const launch *l, int scaled, float *x, uint8_t *halves, uint32_t r) {
    PARAMS(gemm_few);
    uint8_t *from = l->bind[0];
    if (scaled) {
        float s = p->squares ? 1 / sqrtf(F(4)[r * p->in / 16 + p->in / 32] / p->in + p->eps) : 1;
        for (uint32_t i = 0; i < p->in; i++) {
            x[i] = F(0)[r * p->in + i] * s;
            if (p->squares) x[i] *= factor(p->scale);
        }
        put_halves(halves, x, p->in, 1, 0);
        from = halves;
        r = 0;
    }
    take_halves(x, from, p->in, halves_terms(l), r);
}

// output writes the products of row r in a form of gemm_few.
static void output(const launch *l, float *products, uint32_t r) {
    PARAMS(gemm_few);
    uint32_t half = p->out / 2;
    if (l->specs[6] == PIANOLA_OUTPUT_GATED) {
        for (uint32_t o = 0; o < half; o++) F(6)[r * half + o] = gated(l->specs[7], products[o]) * products[half + o];
        return;
    }
    float *y = F(3) + (uint64_t)r * p->y_stride;
    for (uint32_t o = 0; o < p->out; o++) {
        y[o] += factor(p->delta_scale) * products[o];
        F(6)[r * p->out + o] = y[o] * F(5)[o];
    }
    F(7)[r * p->out / 16 + p->out / 32] = squares(y, p->out);
}

static void halves_product(const launch *l, int few) {
    PARAMS(gemm_few);
    int scaled = few && l->specs[5] == PIANOLA_INPUT_SCALED, stored = !few || l->specs[6] == PIANOLA_OUTPUT_STORE;
    float *x = malloc(p->in * sizeof *x), *products = malloc(p->out * sizeof *products);
    uint8_t *halves = malloc(2 * halves_columns(p->in) + 128);
    for (uint32_t r = 0; r < rows(l); r++) {
        input(l, scaled, x, halves, r);
        dots(products, l->bind[1], l->specs[0], 0, x, p->in, p->out);
        for (uint32_t o = 0; l->specs[1] && o < p->out; o++) products[o] += F(2)[o];
        if (stored) memcpy(F(3) + (uint64_t)r * p->y_stride, products, p->out * sizeof *products);
        else output(l, products, r);
    }
    free(halves);
    free(products);
    free(x);
}
// gemm_halves writes the whole sums as those of the first segment, if y has those of segments.
static void gemm_halves(const launch *l) {
    PARAMS(gemm_halves);
    halves_product(l, 0);
    for (uint32_t r = 0; p->splits && r < rows(l); r++) memset(F(3) + (uint64_t)r * p->y_stride + p->out, 0, 7ull * p->out * sizeof(float));
}
static void gemm_few(const launch *l) { halves_product(l, 1); }

static void argmax_part(const launch *l) {
    PARAMS(argmax_part);
    uint32_t u = 0;
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t first = 0; first < p->n; first += p->part, u++) {
            const float *row = F(0) + (uint64_t)r * p->n;
            uint32_t best = first;
            for (uint32_t i = first; i < least(p->n, first + p->part); i++)
                if (row[i] > row[best]) best = i;
            F(1)[2 * u] = row[best];
            ((uint32_t *)l->bind[1])[2 * u + 1] = best;
        }
}

static void accept(const launch *l) {
    PARAMS(accept);
    const uint32_t *stops = (const uint32_t *)l->bind[1];
    uint32_t *tokens = (uint32_t *)l->bind[2], n = 0, goes_on = 1;
    pianola_step *s = step(l);
    while (goes_on && n < rows(l)) {
        const uint32_t *row = (const uint32_t *)l->bind[0] + 2 * (uint64_t)n * p->parts;
        uint32_t best = 0;
        float top = -INFINITY;
        for (uint32_t i = 0; i < p->parts; i++) {
            float v;
            memcpy(&v, row + 2 * i, 4);
            if (v > top) top = v, best = row[2 * i + 1];
        }
        uint32_t *to = tokens + least(second(l, 0) + ++n, p->ring - 1);
        goes_on = *to == best;
        *to = best;
        for (uint32_t i = 0; i < least(stops[0], p->max_stops); i++)
            if (stops[1 + i] == best) s->stop = 1, goes_on = 0;
    }
    uint32_t moved = second(l, 0) + n - s->token_index;
    s->position += moved;
    s->kv_row += moved;
    s->kv_len += moved;
    s->token_index += moved;
    s->row = n - 1;
    s->count += n;
    s->drafted += rows(l) - 1;
    s->accepted += n - 1;
    uint32_t drafted = rows(l) - 1, right = n - 1;
    if (drafted) s->trust = right == drafted ? least((s->trust & ~16u) + 1, 12) : 2 * right >= drafted ? 0 : 16;
    if (s->until && s->token_index >= s->until && !s->stop) s->stop = 512;
}

static void draft(const launch *l) {
    PARAMS(draft);
    uint32_t *tokens = (uint32_t *)l->bind[0], last = least(step(l)->token_index, p->ring - 1), from = 0;
    const uint32_t trust = step(l)->trust, need = trust & 16 ? least(p->least + 2, p->most) : p->least;
    uint32_t drafts = least(least((4u << least((trust & ~16u) / 4, 15)) - 1, p->draft), p->ring - 1 - last), best = need - 1;
    if (step(l)->until) drafts = least(drafts, step(l)->until > last ? step(l)->until - 1 - last : 0);
    for (uint32_t place = last; place > 0 && best < p->most; place--) {
        uint32_t n = 0;
        while (n < least(p->most, place) && tokens[place - 1 - n] == tokens[last - n]) n++;
        if (n > best) best = n, from = place;
    }
    step(l)->rows = from ? 1 + drafts : 1;
    for (uint32_t i = 0; from && i < drafts; i++) tokens[last + 1 + i] = tokens[from + i];
}

static void argmax(const launch *l) {
    PARAMS(argmax);
    uint64_t of = sequence(l, l->specs[1], 0, p->pool);
    const uint32_t *stops = (const uint32_t *)l->bind[1] + of * (p->max_stops + 1);
    uint32_t best = 0;
    float top = -INFINITY;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t index = l->specs[0] ? ((uint32_t *)l->bind[0])[2 * i + 1] : i; // index of a part or a logit
        float v = F(0)[l->specs[0] ? 2 * i : i];
        if (v > top) top = v, best = index;
    }
    ((uint32_t *)l->bind[2])[of * p->ring + least(second(l, 0), p->ring - 1)] = best;
    step(l)->count++;
    for (uint32_t i = 0; i < least(stops[0], p->max_stops); i++)
        if (stops[1 + i] == best) step(l)->stop = 1;
}

// best_of returns the index of the best of n pairs of a value and an index.
static uint32_t best_of(const uint32_t *pairs, uint32_t n) {
    uint32_t best = pairs[1];
    float top = -INFINITY, v;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(&v, pairs + 2 * i, 4);
        if (v > top) top = v, best = pairs[2 * i + 1];
    }
    return best;
}

static void choose_rows(const launch *l) {
    PARAMS(choose_rows);
    uint32_t going = 0;
    for (uint32_t r = 0; r < rows(l); r++) {
        pianola_row *row = record(l, r);
        if (row->stop) continue;
        uint64_t of = least(row->sequence, p->pool - 1);
        const uint32_t *stops = (const uint32_t *)l->bind[1] + of * (p->max_stops + 1);
        uint32_t best = best_of((const uint32_t *)l->bind[0] + 2 * (uint64_t)r * p->parts, p->parts);
        row->position++, row->kv_len++, row->token_index++, row->count++;
        step(l)->count++;
        ((uint32_t *)l->bind[2])[of * p->ring + least(row->token_index, p->ring - 1)] = best;
        if (row->token_index >= row->until) row->stop = 2;
        for (uint32_t i = 0; i < least(stops[0], p->max_stops); i++)
            if (stops[1 + i] == best) row->stop = 1;
        going |= !row->stop;
    }
    if (!going) step(l)->stop = 1024;
}

// The kernel patch; replay/cuda/patch.go describes it.
static void patch(const launch *l) {
    typedef struct {
        uint32_t second;
        uint8_t kind, rows, offset, reserved;
    } entry;
    const uint32_t *p = (const uint32_t *)l->params; // count, records
    pianola_step *s = step(l);
    if (s->cancel) {
        s->stop = 256;
        return;
    }
    for (uint32_t i = 0; i < p[0]; i++) {
        const entry *e = (const entry *)l->bind[0] + i;
        if (e->second >= p[1]) continue;
        uint8_t *to = l->bind[1] + 16 * (uint64_t)e->second;
        const uint32_t values[] = {
            [PIANOLA_PATCH_TOKEN] = s->token_index, [PIANOLA_PATCH_POSITION] = s->position, [PIANOLA_PATCH_KV_LEN] = s->kv_len,
            [PIANOLA_PATCH_ARGMAX] = s->token_index + s->rows, [PIANOLA_PATCH_ROW] = s->row,
        };
        if (e->kind && e->offset <= 12) memcpy(to + e->offset, &values[e->kind], 4);
        if (e->rows) memcpy(to + 12, &s->rows, 4);
    }
    s->position += s->rows;
    s->kv_row += s->rows;
    s->kv_len += s->rows;
    s->token_index += s->rows;
}

// The sampler's kernels choose the largest logit and store it as the log-probability. Package
// internal/conform tests the real kernels.
static void sample_adjust(const launch *l) {
    PARAMS(sample_adjust);
    memcpy(F(3), F(0), 4 * (uint64_t)rows(l) * p->n);
}
static void sample_filter(const launch *l) { (void)l; }
static void sample_draw(const launch *l) {
    PARAMS(sample_draw);
    uint32_t u = 0;
    for (uint32_t r = 0; r < rows(l); r++)
        for (uint32_t first = 0; first < p->n; first += p->part, u++) {
            const float *row = F(0) + (uint64_t)r * p->n;
            uint32_t best = first;
            for (uint32_t i = first; i < least(p->n, first + p->part); i++)
                if (row[i] > row[best]) best = i;
            F(3)[2 * u] = row[best];
            ((uint32_t *)l->bind[3])[2 * u + 1] = best;
        }
}
static void rank_part(const launch *l) { (void)l; }
static void rank(const launch *l) {
    PARAMS(rank);
    uint32_t kind = l->specs[0];
    for (uint32_t r = 0; r < rows(l); r++) {
        if (ended(l, kind, r)) continue;
        uint32_t token = many(kind) ? record(l, r)->token_index : second(l, 0);
        uint32_t best = best_of((const uint32_t *)l->bind[2] + 2 * (uint64_t)r * p->pairs, p->pairs);
        uint32_t *to = (uint32_t *)l->bind[4] + 42 * (sequence(l, kind, r, p->pool) * p->entries + (token + 1) % p->entries);
        memset(to, 0, 168);
        to[0] = best;
        memcpy(to + 1, F(0) + (uint64_t)r * p->n + best, 4);
    }
}

// Every kernel first checks the stop flag.
#define KERNELS(X) X(embed) X(rope_angles) X(rmsnorm) X(add_rmsnorm) X(add) X(gemv) X(head_norm) X(rope) X(kv_write) X(qk_rope_kv) X(attn) X(attn_tile) X(rope_attn_tile) X(attn_chunk) X(rope_attn) X(attn_merge) X(silu_mul) X(halves) X(gemm_halves) X(gemm_few) X(add_rmsnorm_halves) X(argmax_part) X(argmax) X(accept) X(draft) X(activate) X(soft_cap) X(norm_add) X(sample_adjust) X(sample_filter) X(sample_draw) X(rank_part) X(rank) X(choose_rows) X(patch)
KERNELS(GUARD)

kernel fake_kernel(const char *name) {
#define ENTRY(n) {#n, run_##n},
    static const struct { const char *name; kernel run; } list[] = {KERNELS(ENTRY){"gemm", run_gemv}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!strcmp(list[i].name, name)) return list[i].run;
    return layer_kernel(name);
}
