/* Threads that use two models and two engines in every way at once: threads MODEL OTHER_MODEL THREADS ROUNDS
 *
 * Every answer must be that of its own submission: each picture is computed alone first. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <trefoil.h>

enum { PICTURES = 7 };

struct served {
    trefoil_engine engine;
    trefoil_batcher batcher;
    trefoil_tensor input;
    size_t capacity;
    unsigned char *pictures[PICTURES];
    trefoil_scored_class best[PICTURES];
};

static struct served served[2];
static int rounds;
static int failed;
static int called_back;

static void must(trefoil_status status, int line)
{
    if (status == TREFOIL_STATUS_OK)
        return;
    fprintf(stderr, "line %d: %s: %s\n", line, trefoil_status_name(status), trefoil_last_error());
    exit(1);
}
#define MUST(call) must(call, __LINE__)

static unsigned rand_below(unsigned *state, unsigned below)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % below;
}

static void compare(const struct served *of, trefoil_output output, size_t row, int picture)
{
    trefoil_scored_class best;
    size_t found;
    MUST(trefoil_output_top_k(output, row, &best, 1, &found));
    if (best.index != of->best[picture].index || fabsf(best.value - of->best[picture].value) > 1e-3f)
        __atomic_add_fetch(&failed, 1, __ATOMIC_SEQ_CST);
}

struct expected {
    const struct served *of;
    int picture;
    sem_t done;
};

static void ready(void *user, trefoil_status status, trefoil_output output)
{
    struct expected *expected = user;
    MUST(status);
    compare(expected->of, output, 0, expected->picture);
    MUST(trefoil_release(output));
    __atomic_add_fetch(&called_back, 1, __ATOMIC_SEQ_CST);
    sem_post(&expected->done);
}

static void log_line(void *user, uint32_t level, const char *message)
{
    (void)level;
    if (message[0] != '\0')
        __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

/* A batch of some pictures; waited for, looked at, called back, or dropped. */
static void one_batch(const struct served *of, unsigned *state)
{
    trefoil_batch batch;
    trefoil_ticket ticket;
    trefoil_output output = 0;
    int pictures[64];
    size_t rows = 1 + rand_below(state, (unsigned)of->capacity);
    unsigned how = rand_below(state, 6);
    MUST(trefoil_acquire(of->engine, &batch));
    for (size_t i = 0; i < rows; i++) {
        void *row;
        size_t bytes;
        pictures[i] = (int)rand_below(state, PICTURES);
        MUST(trefoil_batch_row(batch, i, &row, &bytes));
        memcpy(row, of->pictures[pictures[i]], bytes);
    }
    if (how == 0) {
        MUST(trefoil_release(batch));
        return;
    }
    MUST(trefoil_submit(batch, rows, &ticket));
    if (how == 1) {
        MUST(trefoil_release(ticket));
        return;
    }
    if (how == 2) {
        struct expected expected = {.of = of, .picture = pictures[0]};
        sem_init(&expected.done, 0, 0);
        MUST(trefoil_on_ready(ticket, ready, &expected));
        while (sem_wait(&expected.done) != 0) {
        }
        sem_destroy(&expected.done);
        return;
    }
    if (how == 3) {
        trefoil_status status;
        while ((status = trefoil_wait_for(ticket, 100000, &output)) == TREFOIL_STATUS_NOT_READY) {
        }
        MUST(status);
    } else {
        MUST(trefoil_wait(ticket, &output));
    }
    for (size_t i = 0; i < rows; i++)
        compare(of, output, i, pictures[i]);
    MUST(trefoil_release(output));
}

/* A row through the batcher; written in place or copied, waited for or called back. */
static void one_row(const struct served *of, unsigned *state)
{
    trefoil_ticket ticket;
    trefoil_output output;
    struct expected expected = {.of = of, .picture = (int)rand_below(state, PICTURES)};
    const unsigned char *pixels = of->pictures[expected.picture];
    if (rand_below(state, 2) == 0) {
        trefoil_row row;
        void *memory;
        size_t bytes;
        MUST(trefoil_batcher_row(of->batcher, NULL, &row));
        MUST(trefoil_row_memory(row, &memory, &bytes));
        memcpy(memory, pixels, bytes);
        MUST(trefoil_row_submit(row, &ticket));
    } else {
        MUST(trefoil_batcher_submit(of->batcher, NULL, pixels, of->input.row_bytes, &ticket));
    }
    if (rand_below(state, 2) == 0) {
        sem_init(&expected.done, 0, 0);
        MUST(trefoil_on_ready(ticket, ready, &expected));
        while (sem_wait(&expected.done) != 0) {
        }
        sem_destroy(&expected.done);
    } else {
        MUST(trefoil_wait(ticket, &output));
        compare(of, output, 0, expected.picture);
        MUST(trefoil_release(output));
    }
}

static void *work(void *seed)
{
    unsigned state = (unsigned)(size_t)seed;
    for (int round = 0; round < rounds; round++) {
        const struct served *of = &served[rand_below(&state, 4) == 0];
        if (rand_below(&state, 2) == 0)
            one_batch(of, &state);
        else
            one_row(of, &state);
    }
    return NULL;
}

static void serve(struct served *of, const char *path, trefoil_device device, size_t threads, unsigned *state)
{
    trefoil_model model;
    MUST(trefoil_model_open(path, &model));
    trefoil_engine_options options = {
        .size = sizeof options, .device = device, .batch = 4, .staging = threads + 3, .trace_batches = 64,
        .waiting = of == served ? TREFOIL_WAITING_BLOCK : TREFOIL_WAITING_CALLBACK};
    trefoil_batcher_options delay = {.size = sizeof delay, .max_delay_ns = 200 * 1000};
    MUST(trefoil_engine_build(model, &options, &of->engine));
    MUST(trefoil_batcher_build(of->engine, &delay, &of->batcher));
    MUST(trefoil_release(model));
    of->input.size = sizeof of->input;
    MUST(trefoil_engine_input(of->engine, &of->input));
    MUST(trefoil_engine_capacity(of->engine, &of->capacity));
    for (int picture = 0; picture < PICTURES; picture++) {
        trefoil_batch batch;
        trefoil_ticket ticket;
        trefoil_output output;
        void *row;
        size_t found;
        of->pictures[picture] = malloc(of->input.row_bytes);
        /* Blocks of one colour, so that pictures differ for a model too. */
        for (size_t i = 0; i < of->input.row_bytes; i++)
            of->pictures[picture][i] =
                (unsigned char)(i % (97u * (unsigned)(picture + 1)) == 0 ? rand_below(state, 256)
                                : i == 0                                 ? 0
                                                                         : of->pictures[picture][i - 1]);
        MUST(trefoil_acquire(of->engine, &batch));
        MUST(trefoil_batch_row(batch, 0, &row, NULL));
        memcpy(row, of->pictures[picture], of->input.row_bytes);
        MUST(trefoil_submit(batch, 1, &ticket));
        MUST(trefoil_wait(ticket, &output));
        MUST(trefoil_output_top_k(output, 0, &of->best[picture], 1, &found));
        MUST(trefoil_release(output));
    }
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 64;
    size_t threads = strtoul(argv[3], NULL, 10);
    rounds = atoi(argv[4]);
    trefoil_device device;
    unsigned state = 1;
    int logged = 0;
    MUST(trefoil_log(TREFOIL_LOG_LEVEL_INFO, log_line, &logged));
    MUST(trefoil_device_open_cpu(2, &device));
    for (int i = 0; i < 2; i++)
        serve(&served[i], argv[1 + i], device, threads, &state);

    pthread_t *running = calloc(threads, sizeof *running);
    for (size_t i = 0; i < threads; i++)
        pthread_create(&running[i], NULL, work, (void *)(i + 1));
    for (size_t i = 0; i < threads; i++)
        pthread_join(running[i], NULL);
    free(running);

    char report[256];
    trefoil_batcher_stats stats = {.size = sizeof stats};
    MUST(trefoil_trace_report(served[0].engine, report, sizeof report, NULL));
    MUST(trefoil_batcher_get_stats(served[0].batcher, &stats));
    for (int i = 0; i < 2; i++) {
        trefoil_health health = {.size = sizeof health};
        MUST(trefoil_batcher_close(served[i].batcher, 0, 10ull * 1000 * 1000 * 1000));
        MUST(trefoil_engine_close(served[i].engine, 0, 10ull * 1000 * 1000 * 1000));
        /* The result of a ticket that was released is freed by the completion thread, soon. */
        for (int look = 0; look < 1000; look++) {
            MUST(trefoil_engine_health(served[i].engine, &health));
            if (health.filling + health.in_flight + health.unread == 0)
                break;
            nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
        }
        if (health.filling + health.in_flight + health.unread + health.quarantined != 0) {
            printf("credits are missing: %zu, %zu, %zu\n", health.filling, health.in_flight, health.unread);
            failed++;
        }
        MUST(trefoil_release(served[i].batcher));
        MUST(trefoil_release(served[i].engine));
        for (int picture = 0; picture < PICTURES; picture++)
            free(served[i].pictures[picture]);
    }
    /* All memory comes home, once the last threads of batchers and rings are gone. */
    trefoil_device_info info = {.size = sizeof info};
    for (int look = 0; look < 1000; look++) {
        MUST(trefoil_device_get_info(device, &info));
        if (info.device_bytes_used + info.page_locked_bytes_used == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    if (info.device_bytes_used + info.page_locked_bytes_used != 0) {
        printf("%llu bytes are left\n", (unsigned long long)info.page_locked_bytes_used);
        failed++;
    }
    MUST(trefoil_release(device));
    MUST(trefoil_log(TREFOIL_LOG_LEVEL_OFF, NULL, NULL));
    printf("%d wrong answers, %d callbacks, %llu rows in %llu batches, %d log lines\n", failed, called_back,
           (unsigned long long)stats.rows, (unsigned long long)stats.batches, logged);
    return failed != 0 || called_back == 0 || stats.rows == 0 || logged == 0;
}
