/* Messages with samples in JSON, where they are written as usual; whatever else is left to a whole parser. */
#include <math.h>
#include <string.h>

#include "kernel.h"

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

static const char *skip(const char *at, const char *stop) {
    while (at < stop && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

static int is_digit(const char *at, const char *stop) { return at < stop && *at >= '0' && *at <= '9'; }

/* A number, or null, which becomes NaN; what follows it, or NULL. Up to 2^53 and 10^22 one rounding gives the nearest
 * double (Clinger 1990). */
static const char *number(const char *at, const char *stop, double *value) {
    if (stop - at >= 4 && at[0] == 'n' && at[1] == 'u' && at[2] == 'l' && at[3] == 'l') {
        *value = NAN;
        return at + 4;
    }
    int negative = *at == '-';
    int64_t digits = 0, tens = 0;
    at += negative;
    if (!is_digit(at, stop) || (*at == '0' && is_digit(at + 1, stop))) return NULL;
    const char *first = at;
    while (is_digit(at, stop) && at - first < 18) digits = digits * 10 + (*at++ - '0');
    if (at < stop && *at == '.') {
        const char *point = ++at;
        while (is_digit(at, stop) && at - first < 18) digits = digits * 10 + (*at++ - '0');
        tens = point - at;
        if (at == point) return NULL;
    }
    if (is_digit(at, stop)) return NULL; /* they might not fit into 64 bits */
    if (at < stop && (*at == 'e' || *at == 'E')) {
        int64_t power = 0;
        int down = ++at < stop && *at == '-';
        if (at < stop && (*at == '-' || *at == '+')) at++;
        const char *begin = at;
        while (is_digit(at, stop) && at - begin < 3) power = power * 10 + (*at++ - '0');
        if (at == begin || is_digit(at, stop)) return NULL;
        tens += down ? -power : power;
    }
    if (digits > (1LL << 53) || tens < -22 || tens > 22) return NULL;
    *value = tens < 0 ? (double)digits / TENS[-tens] : (double)digits * TENS[tens];
    if (negative) *value = -*value;
    return at;
}

/* A list of numbers or, to `most_leads`, of such lists of one length: to `out`; what is beyond ±`limit` becomes NaN. The
 * number of lists, and of numbers in each, to `sizes`. Returns what follows the list, or NULL. */
static const char *samples(const char *at, const char *stop, int64_t most_leads, float limit, float *out,
                           int64_t *sizes) {
    if (at == stop || *at++ != '[') return NULL;
    at = skip(at, stop);
    int nested = at < stop && *at == '[';
    int64_t num = 0;
    sizes[0] = sizes[1] = 0;
    do {
        int64_t begin = num;
        if (nested && (at == stop || *at++ != '[')) return NULL;
        do {
            double value;
            at = skip(at, stop);
            if (at == stop || (at = number(at, stop, &value)) == NULL) return NULL;
            /* Each number takes two characters or more with the comma or bracket behind it, so `out` has room. */
            out[num++] = fabs((double)(float)value) <= (double)limit ? (float)value : NAN;
            at = skip(at, stop);
        } while (at < stop && *at++ == ',');
        if (at[-1] != ']' || sizes[0] == most_leads || (sizes[0] && num - begin != sizes[1])) return NULL;
        sizes[0]++, sizes[1] = num - begin;
        if (!nested) return at;
        at = skip(at, stop);
        if (at < stop && *at == ']') return at + 1;
        if (at == stop || *at++ != ',') return NULL;
        at = skip(at, stop);
    } while (1);
}

/* What follows a text of printable ASCII without escapes, of which `place` is the first character; or NULL. */
static const char *plain_text(const char *at, const char *stop, const char **place) {
    if (at == stop || *at++ != '"') return NULL;
    *place = at;
    while (at < stop && *at >= ' ' && *at <= '~' && *at != '"' && *at != '\\') at++;
    return at < stop && *at == '"' ? at + 1 : NULL;
}

/* The frame of a message, an object that has nothing but `mv`, its samples to `out`, which has room for length / 2;
 * rate_hz, start and t, to `numbers`, NaN where missing or null; and the name of the stream, whose place and length
 * follow the numbers of lists and of samples in `sizes`, 0 if it is missing. Returns 0, or -1. */
int64_t HEARTLM(frame)(const char *text, int64_t length, int64_t most_leads, float limit, float *out, double *numbers,
                       int64_t *sizes) {
    static const char *const NAMES[] = {"rate_hz", "start", "t", "mv", "stream"};
    const char *at = skip(text, text + length), *stop = text + length, *place;
    int found[5] = {0};
    numbers[0] = numbers[1] = numbers[2] = NAN;
    sizes[2] = sizes[3] = 0;
    if (at == stop || *at++ != '{') return -1;
    do {
        size_t name = 0;
        if ((at = plain_text(skip(at, stop), stop, &place)) == NULL) return -1;
        size_t own = (size_t)(at - 1 - place);
        while (name < 5 && (strlen(NAMES[name]) != own || memcmp(NAMES[name], place, own))) name++;
        if (name == 5 || found[name]++) return -1;
        at = skip(at, stop);
        if (at == stop || *at++ != ':') return -1;
        at = skip(at, stop);
        if (at == stop) return -1;
        if (name < 3) at = number(at, stop, numbers + name);
        else if (name == 3) at = samples(at, stop, most_leads, limit, out, sizes);
        else if ((at = plain_text(at, stop, &place)) != NULL) sizes[2] = place - text, sizes[3] = at - 1 - place;
        if (at == NULL) return -1;
        at = skip(at, stop);
    } while (at < stop && *at++ == ',');
    return at[-1] == '}' && skip(at, stop) == stop && found[3] ? 0 : -1;
}
