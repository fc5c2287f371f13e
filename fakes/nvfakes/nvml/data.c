/* The machine's facts, kept inside the library's own file as sorted pairs of text.
 *
 * The build leaves a region of zeros behind a mark; nvfakes writes the facts of one machine into it, also while the
 * library is in use: every process and container that has the file mapped sees the change. There are two tables, and
 * `active` says which one counts, so that a text stays readable until the update after the next.
 */
#include "fake.h"

enum { REGION = 1024 * 1024 };

struct region {
    char magic[16];
    u32 active;
};

struct table {
    u32 count;
    u32 size;
    u32 pairs[];
};

__attribute__((section(".nvfakes,\"a\",@progbits#"), aligned(4096), used)) static const volatile char store[REGION] =
    "NVFAKES-FACTS-1";

static int compare(const char *one, const char *two) {
    while (*one && *one == *two) {
        one++;
        two++;
    }
    return (int)(u8)*one - (int)(u8)*two;
}

/* Returns the text of a fact, or NULL where the machine has none. */
const char *fact(const char *key) {
    const char *base = (const char *)(uintptr_t)store;
    u32 active = __atomic_load_n(&((const struct region *)base)->active, __ATOMIC_ACQUIRE);
    if (active == 0 || active >= REGION)
        return NULL;
    const struct table *facts = (const struct table *)(base + active);
    u32 low = 0, high = facts->count;
    while (low < high) {
        u32 middle = low + (high - low) / 2;
        int order = compare(key, base + facts->pairs[2 * middle]);
        if (order == 0)
            return base + facts->pairs[2 * middle + 1];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const char *gpu_fact(u32 gpu, const char *name) {
    char key[128];
    *put_text(put_text(put_number(put_text(key, "g"), gpu), "."), name) = 0;
    return fact(key);
}

/* Returns a fact of one item of a GPU's list, such as g0.m1.uuid. */
const char *item_fact(u32 gpu, const char *list, u32 item, const char *name) {
    char key[128];
    char *end = put_text(put_number(put_text(key, "g"), gpu), ".");
    *put_text(put_text(put_number(put_text(end, list), item), "."), name) = 0;
    return fact(key);
}

/* Reads a decimal number; a leading minus gives two's complement. Returns 0 if there is none. */
int parse_u64(const char *text, u64 *value) {
    if (!text)
        return 0;
    int negative = *text == '-';
    text += negative;
    if (*text < '0' || *text > '9')
        return 0;
    u64 found = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        found = found * 10 + (u64)(*text - '0');
    *value = negative ? 0 - found : found;
    return 1;
}

u64 number_or(const char *text, u64 otherwise) {
    u64 value;
    return parse_u64(text, &value) ? value : otherwise;
}

/* Takes the next number out of a list such as "1,2:3"; returns 0 at the end. */
u32 next_number(const char **text, u64 *value) {
    if (!*text || !parse_u64(*text, value))
        return 0;
    while (**text && **text != ',' && **text != ':')
        (*text)++;
    if (**text)
        (*text)++;
    return 1;
}

u32 text_length(const char *text) {
    u32 length = 0;
    while (text[length])
        length++;
    return length;
}

int same_text(const char *one, const char *two) { return compare(one, two) == 0; }

/* Copies a text into a caller's buffer; 7 if it is too small, as NVML says. */
int copy_text(const char *text, char *buffer, u32 length) {
    if (!buffer)
        return INVALID_ARGUMENT;
    u32 size = text_length(text) + 1;
    if (length < size)
        return INSUFFICIENT_SIZE;
    for (u32 place = 0; place < size; place++)
        buffer[place] = text[place];
    return SUCCESS;
}

char *put_text(char *place, const char *text) {
    while (*text)
        *place++ = *text++;
    *place = 0;
    return place;
}

char *put_number(char *place, u64 value) {
    char digits[24];
    int count = 0;
    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    while (count)
        *place++ = digits[--count];
    *place = 0;
    return place;
}

char *put_hex(char *place, u64 value, u32 digits, int upper) {
    const char *alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    for (u32 digit = digits; digit > 0; digit--)
        *place++ = alphabet[value >> (4 * (digit - 1)) & 15];
    *place = 0;
    return place;
}

void clear(void *memory, size_t size) {
    volatile char *place = memory;
    while (size--)
        *place++ = 0;
}
