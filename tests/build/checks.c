/* What a library of a GRU of 8 inputs and 16 units answers to calls that are wrong, to memory that runs out, and
   to several threads. Prints "done", or the lines that are not as they should be. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gru.h"

#define EXPECT(condition) \
    do { \
        if (!(condition)) failures++, printf("line %d: %s\n", __LINE__, #condition); \
    } while (0)

enum { STEPS = 40, ROWS = 4 };

static int failures, allocations, failing = -1;
static float x[STEPS * 8], y[STEPS * 16], h[ROWS * 16];
static const int64_t offsets[] = {0, 7, 7, 30, STEPS};

/* The library's own allocations, of which one fails when it is asked to. */
void *aligned_alloc(size_t alignment, size_t size)
{
    void *memory = NULL;
    if (allocations++ == failing) return NULL;
    return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static gru_context *opened(void)
{
    gru_context *context = NULL;
#ifdef BESIDE
    EXPECT(gru_open(BESIDE, &context) == GRU_OK);
#else
    EXPECT(gru_new(&context) == GRU_OK);
#endif
    return context;
}

static void wrong_calls(void)
{
    gru_context *context = opened();
    const int64_t late[] = {1, 2}, back[] = {0, 5, 4}, far[] = {0, INT64_MAX}, below[] = {0, -1};
    EXPECT(gru_run(NULL, 1, offsets, x, NULL, y, h) == GRU_NULL);
    EXPECT(gru_run(context, ROWS, NULL, x, NULL, y, h) == GRU_NULL);
    EXPECT(gru_run(context, ROWS, offsets, NULL, NULL, y, h) == GRU_NULL);
    EXPECT(gru_run(context, -1, offsets, x, NULL, y, h) == GRU_NEGATIVE);
    EXPECT(gru_run(context, INT64_MIN, offsets, x, NULL, y, h) == GRU_NEGATIVE);
    EXPECT(gru_run(context, INT64_MAX, offsets, x, NULL, y, h) == GRU_TOO_LARGE);
    EXPECT(gru_run(context, 1, late, x, NULL, y, h) == GRU_OFFSETS);
    EXPECT(gru_run(context, 2, back, x, NULL, y, h) == GRU_OFFSETS);
    EXPECT(gru_run(context, 1, below, x, NULL, y, h) == GRU_OFFSETS);
    EXPECT(gru_run(context, 1, far, x, NULL, y, h) == GRU_TOO_LARGE);
    EXPECT(gru_run(context, 0, NULL, NULL, NULL, NULL, NULL) == GRU_OK);
    EXPECT(gru_run(context, 1, (const int64_t[]){0, 0}, NULL, NULL, NULL, h) == GRU_OK);
    EXPECT(h[0] == 0);
    EXPECT(!strcmp(gru_error(GRU_NEGATIVE), "the number of sequences is negative"));
    EXPECT(!strcmp(gru_error(99), "this is not an error code"));
    gru_free(context);
    gru_free(NULL);
}

static void nobody_wants(void)
{
    gru_context *context = opened();
    float only[STEPS * 16], last[ROWS * 16];
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, y, h) == GRU_OK);
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, only, NULL) == GRU_OK);
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, NULL, last) == GRU_OK);
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, NULL, NULL) == GRU_OK);
    EXPECT(!memcmp(only, y, sizeof y) && !memcmp(last, h, sizeof h));
    gru_free(context);
}

static void memory_runs_out(void)
{
    gru_context *context = (gru_context *)1;
    failing = allocations;
#ifdef BESIDE
    EXPECT(gru_open(BESIDE, &context) == GRU_MEMORY && context == NULL);
    failing = allocations + 1;
    EXPECT(gru_open(BESIDE, &context) == GRU_MEMORY && context == NULL);
#else
    EXPECT(gru_new(&context) == GRU_MEMORY && context == NULL);
    EXPECT(gru_new(NULL) == GRU_NULL);
#endif
    context = opened();
    failing = allocations;
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, y, h) == GRU_MEMORY);
    memset(y, 0, sizeof y);
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, y, h) == GRU_OK && y[0] != 0); /* there is memory again */
    gru_free(context);
}

static void *in_a_thread(void *argument)
{
    gru_context *context = opened();
    float own[STEPS * 16];
    long different = 0;
    for (int turn = 0; turn < 200; turn++) {
        memset(own, 0, sizeof own);
        different += gru_run(context, ROWS, offsets, x, NULL, own, NULL) != GRU_OK || memcmp(own, y, sizeof y);
    }
    gru_free(context);
    *(long *)argument = different;
    return NULL;
}

static void threads(void)
{
    gru_context *context = opened();
    pthread_t all[4];
    long different[4] = {1, 1, 1, 1};
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, y, h) == GRU_OK);
    for (int i = 0; i < 4; i++) EXPECT(!pthread_create(&all[i], NULL, in_a_thread, &different[i]));
    for (int i = 0; i < 4; i++) EXPECT(!pthread_join(all[i], NULL) && different[i] == 0);
    gru_free(context);
}

#ifdef BESIDE
static void other_weights(void)
{
    static unsigned char data[1 << 20];
    gru_context *context = (gru_context *)1;
    FILE *file = fopen(BESIDE, "rb");
    size_t size = file ? fread(data, 1, sizeof data, file) : 0;
    EXPECT(file && size > 64 && !fclose(file));
    EXPECT(gru_new(data, size, &context) == GRU_OK && context != NULL);
    memset(y, 0, sizeof y);
    EXPECT(gru_run(context, ROWS, offsets, x, NULL, y, h) == GRU_OK && y[0] != 0);
    gru_free(context);
    EXPECT(gru_new(data, size - 1, &context) == GRU_OTHER_WEIGHTS && context == NULL);
    EXPECT(gru_new(data, 0, &context) == GRU_OTHER_WEIGHTS);
    context = (gru_context *)1;
    EXPECT(gru_new(NULL, size, &context) == GRU_NULL && context == NULL);
    EXPECT(gru_new(data, size, NULL) == GRU_NULL);
    for (size_t place = 0; place < size; place += place < 64 ? 1 : 97) {
        data[place] ^= 4;
        int code = gru_new(data, size, &context);
        int unread = 32 <= place && place < 64; /* the rest of the head says nothing */
        EXPECT(code == (place < 24 ? GRU_OTHER_WEIGHTS : unread ? GRU_OK : GRU_DAMAGED_WEIGHTS));
        if (code == GRU_OK) gru_free(context);
        data[place] ^= 4;
    }
    EXPECT(gru_open("there is no such file", &context) == GRU_FILE && context == NULL);
    EXPECT(gru_open("/", &context) == GRU_FILE && context == NULL);
    context = (gru_context *)1;
    EXPECT(gru_open(NULL, &context) == GRU_NULL && context == NULL);
    EXPECT(gru_open(OTHER, &context) == GRU_OTHER_WEIGHTS);
}
#endif

int main(void)
{
    for (int i = 0; i < STEPS * 8; i++) x[i] = (float)(i % 23) / 11.0f - 1.0f;
    wrong_calls();
    nobody_wants();
    memory_runs_out();
    threads();
#ifdef BESIDE
    other_weights();
#endif
    if (!failures) printf("done\n");
    return failures != 0;
}
