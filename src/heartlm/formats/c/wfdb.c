/* Samples and annotations out of WFDB files.
 *
 * A signal file is a row of samples, those of one moment ("frame") side by side. It is worked through in blocks that
 * stay in the nearest cache: unpack the block, then pick each wanted column out of it. */
#include <math.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernel.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "samples are read as they lie in memory");

enum { BLOCK = 4096 };

static int16_t sign_extend_12(unsigned value) { return (int16_t)((int16_t)(value << 4) >> 4); }

/* Two samples in three bytes: low bytes first and last, their high halves in the middle. */
static void unpack_212(const uint8_t *bytes, int64_t count, int16_t *out) {
    int64_t i = 0;
#if defined(__AVX2__)
    const __m256i pairs = _mm256_setr_epi8(0, 1, 2, 1, 3, 4, 5, 4, 6, 7, 8, 7, 9, 10, 11, 10, 0, 1, 2, 1, 3, 4, 5, 4, 6,
                                           7, 8, 7, 9, 10, 11, 10);
    const __m256i lift = _mm256_set1_epi32(0x00010010), low_byte = _mm256_set1_epi32(0x00FF0000);
    for (; i + 20 <= count; i += 16) { /* the upper load ends four bytes past its twelve */
        const uint8_t *from = bytes + i / 2 * 3;
        __m256i raw = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)from)),
                                              _mm_loadu_si128((const __m128i *)(from + 12)), 1);
        __m256i words = _mm256_shuffle_epi8(raw, pairs);
        __m256i high = _mm256_srai_epi16(_mm256_mullo_epi16(words, lift), 4);
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_blendv_epi8(high, words, low_byte));
    }
#endif
    for (; i + 2 <= count; i += 2) {
        const uint8_t *from = bytes + i / 2 * 3;
        out[i] = sign_extend_12(from[0] | (from[1] & 15u) << 8);
        out[i + 1] = sign_extend_12(from[2] | (from[1] >> 4) << 8);
    }
    if (i < count) out[i] = sign_extend_12(bytes[i / 2 * 3] | (bytes[i / 2 * 3 + 1] & 15u) << 8);
}

static void unpack_61(const uint8_t *bytes, int64_t count, int16_t *out) {
    for (int64_t i = 0; i < count; i++) out[i] = (int16_t)(bytes[2 * i] << 8 | bytes[2 * i + 1]);
}

static void unpack_80(const uint8_t *bytes, int64_t count, int16_t *out) {
    for (int64_t i = 0; i < count; i++) out[i] = (int16_t)(bytes[i] - 128);
}

static void unpack_24(const uint8_t *bytes, int64_t count, int32_t *out) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *from = bytes + 3 * i;
        out[i] = (int32_t)((uint32_t)from[0] << 8 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 24) >> 8;
    }
}

static int64_t num_bits(int64_t format) { return format == 212 ? 12 : format == 61 ? 16 : format == 80 ? 8 : format; }

/* The lowest sample marks a missing value. */
static int32_t missing_adu(int64_t bits) { return (int32_t)(0u - (1u << (bits - 1))); }

/* Unpack `count` samples into `out`, int32 where the format is wide, else int16; returns where they are, which is
 * `bytes` for the formats that are integers of the machine already. */
static const uint8_t *unpack(const uint8_t *bytes, int64_t format, int64_t count, void *out) {
    switch (format) {
    case 212: unpack_212(bytes, count, out); break;
    case 61: unpack_61(bytes, count, out); break;
    case 80: unpack_80(bytes, count, out); break;
    case 24: unpack_24(bytes, count, out); break;
    default: return bytes;
    }
    return out;
}

/* Whether single precision gives the physical values of 16-bit samples to the last bit: the difference is exact, and a
 * quotient of two single-precision numbers rounded to double and then to single is rounded right, since 53 >= 2 * 24 + 2
 * (Figueroa, When is double rounding innocuous?, SIGNUM Newsletter 30(3), 1995). Gains keep quotients from underflow. */
static int fits_single(const double *scale) {
    double baseline = scale[0], gain = fabs(scale[1]);
    return fabs(baseline) < 0x1p22 && baseline == (double)(int32_t)baseline && gain == (double)(float)gain &&
           gain > 0x1p-60 && gain < 0x1p60 && scale[2] == 1;
}

/* For int16 and int32 alike: pick a column, sum it, and turn it into physical values. Missing values are rare and have
 * a loop of their own, which keeps the one that divides free of branches. */
#define COLUMNS(TYPE, NAME)                                                                                        \
    static void NAME##_pick(const uint8_t *from, int64_t step, int64_t count, TYPE *to) {                          \
        const int64_t size = sizeof(TYPE);                                                                         \
        if (step == 1) memcpy(to, from, (size_t)(count * size));                                                   \
        else if (step == 2) for (int64_t t = 0; t < count; t++) memcpy(to + t, from + 2 * size * t, sizeof(TYPE)); \
        else for (int64_t t = 0; t < count; t++) memcpy(to + t, from + step * size * t, sizeof(TYPE));             \
    }                                                                                                              \
    static uint16_t NAME##_sum(const TYPE *from, int64_t count) {                                                  \
        uint16_t sum = 0;                                                                                          \
        for (int64_t t = 0; t < count; t++) sum = (uint16_t)(sum + (uint16_t)from[t]);                             \
        return sum;                                                                                                \
    }                                                                                                              \
    static void NAME##_scale(const TYPE *from, int64_t count, const double *scale, TYPE missing, float *to) {      \
        double baseline = scale[0], gain = scale[1], factor = scale[2];                                            \
        TYPE found = 0;                                                                                            \
        if (sizeof(TYPE) == 2 && fits_single(scale))                                                               \
            for (int64_t t = 0; t < count; t++) to[t] = ((float)from[t] - (float)baseline) / (float)gain;          \
        else                                                                                                       \
            for (int64_t t = 0; t < count; t++) to[t] = (float)(((double)from[t] - baseline) / gain * factor);     \
        for (int64_t t = 0; t < count; t++) found |= from[t] == missing;                                           \
        if (found)                                                                                                 \
            for (int64_t t = 0; t < count; t++)                                                                    \
                if (from[t] == missing) to[t] = NAN;                                                               \
    }                                                                                                              \
    static void NAME##_column(const uint8_t *from, int64_t step, int64_t count, const double *scale, TYPE missing, \
                              void *out, int64_t at, uint16_t *sum) {                                              \
        TYPE scratch[BLOCK], *adu = scale ? scratch : (TYPE *)out + at;                                            \
        NAME##_pick(from, step, count, adu);                                                                       \
        if (sum) *sum = (uint16_t)(*sum + NAME##_sum(adu, count));                                                 \
        if (scale) NAME##_scale(adu, count, scale, missing, (float *)out + at);                                    \
    }

COLUMNS(int16_t, narrow)
COLUMNS(int32_t, wide)

/* Decode `num_frames` frames of `width` samples; the first of them is sample number `skip` of `bytes`, which start at a
 * group of the format.
 *
 * columns[c] says which sample of a frame becomes row c of `out`; rows are `row` elements apart. Without `calibration`
 * rows are adu, int16 or (formats 24 and 32) int32; with it they are float32
 * (adu - calibration[c][0]) / calibration[c][1] * calibration[c][2], NaN where the format has its mark for no value.
 * Where `sums` is not null, the sum of each row's adu is added to sums[c]. */
void HEARTLM(wfdb_decode)(const uint8_t *bytes, int64_t format, int64_t skip, int64_t num_frames, int64_t width,
                          const int64_t *columns, int64_t num_columns, const double *calibration, void *out,
                          int64_t row, uint16_t *sums) {
    union {
        int16_t narrow[BLOCK];
        int32_t wide[BLOCK];
    } block;
    /* Frames by twos, so that each block begins at a whole byte of format 212, `skip` samples before its first frame;
     * a block holds that sample too. The caller sees to it that two frames fit. */
    int64_t per_block = (BLOCK - 1) / width / 2 * 2, bits = num_bits(format);
    for (int64_t done = 0; done < num_frames; done += per_block) {
        int64_t count = num_frames - done < per_block ? num_frames - done : per_block;
        const uint8_t *samples = unpack(bytes + done * width * bits / 8, format, skip + count * width, &block);
        for (int64_t c = 0; c < num_columns; c++) {
            int64_t place = skip + columns[c], at = c * row + done;
            const double *scale = calibration ? calibration + 3 * c : NULL;
            uint16_t *sum = sums ? sums + c : NULL;
            if (bits > 16) wide_column(samples + 4 * place, width, count, scale, missing_adu(bits), out, at, sum);
            else narrow_column(samples + 2 * place, width, count, scale, (int16_t)missing_adu(bits), out, at, sum);
        }
    }
}

/* Decode an annotation file of `num_words` 16-bit words: six bits of code, ten of time since the annotation before.
 *
 * Annotation i goes to sample[i], code[i] and subtype[i], which the caller has set to 0. Codes of other modifiers are
 * skipped but for AUX, text: place[3 * j] is the annotation that text j belongs to (-1: none), then come its first byte
 * in the file and its length. Returns the number of annotations, -1 where the file ends before its end mark; counts the
 * texts in *num_texts. */
int64_t HEARTLM(wfdb_annotations)(const uint8_t *content, int64_t num_words, int64_t *sample, uint8_t *code,
                                  int64_t *place, int64_t *num_texts, int8_t *subtype) {
    enum { SKIP = 59, SUB = 61, AUX = 63 };
    int64_t time = 0, found = 0, texts = 0;
    for (int64_t at = 0; at < num_words; at++) {
        const uint8_t *from = content + 2 * at;
        int kind = from[1] >> 2, step = from[0] | (from[1] & 3) << 8;
        if (kind < SKIP) {
            if (kind == 0 && step == 0) {
                *num_texts = texts;
                return found;
            }
            time += step;
            sample[found] = time;
            code[found++] = (uint8_t)kind;
        } else if (kind == SKIP) {
            if (at + 2 >= num_words) return -1;
            time += (int32_t)((uint32_t)from[2] << 16 | (uint32_t)from[3] << 24 | from[4] | (uint32_t)from[5] << 8);
            at += 2;
        } else if (kind == SUB && found) {
            subtype[found - 1] = (int8_t)from[0];
        } else if (kind == AUX) {
            place[3 * texts] = found - 1;
            place[3 * texts + 1] = 2 * (at + 1);
            place[3 * texts++ + 2] = step;
            at += (step + 1) / 2;
        }
    }
    return -1;
}
