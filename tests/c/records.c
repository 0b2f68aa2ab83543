/* Two networks of records, each by an engine, its batcher and a fleet, behind the hazard checker: one reads an image and a
 * vector of numbers, and gives features in halves and the places of the largest; the other is a residual block on tokens.
 * records RECORDS.onnx TOKENS.onnx [cpu | cuda:N] */
#include <math.h>
#include <string.h>

#include "expect.h"

enum { PIXELS = 5 * 7, COLOURS = 3, NUMBERS = 2, OF_COLOURS = 4, FEATURES = OF_COLOURS + NUMBERS, BEST = 2, ROWS = 3 };
enum { TOKENS = 5, WIDTH = 8, INNER = 12 };

/* What fills the rows of a network, and compares what they are answered with. */
typedef struct {
    void (*write)(trefoil_batch batch, size_t at, size_t row);
    void (*fill)(trefoil_row to, size_t row);
    void (*check)(trefoil_output output, size_t at, size_t row);
} network;

static void fill(size_t row, uint8_t *image, float *numbers)
{
    for (size_t i = 0; i < PIXELS * COLOURS; i++)
        image[i] = (uint8_t)(i * 37 + row * 101);
    numbers[0] = (float)row / 4.0f, numbers[1] = -1.0f;
}

/* What a row is answered with, by plain loops; the product's matrix holds i / 8 - 0.5. */
static void answer(size_t row, double *features, uint32_t *best)
{
    uint8_t image[PIXELS * COLOURS];
    float numbers[NUMBERS];
    fill(row, image, numbers);
    for (size_t k = 0; k < OF_COLOURS; k++) {
        features[k] = 0.0;
        for (size_t c = 0; c < COLOURS; c++) {
            double sum = 0.0;
            for (size_t pixel = 0; pixel < PIXELS; pixel++)
                sum += image[pixel * COLOURS + c] / 255.0;
            features[k] += sum / PIXELS * ((double)(c * OF_COLOURS + k) / 8.0 - 0.5);
        }
    }
    for (size_t i = 0; i < NUMBERS; i++)
        features[OF_COLOURS + i] = numbers[i];
    for (size_t place = 0; place < BEST; place++) {
        best[place] = UINT32_MAX;
        for (uint32_t i = 0; i < FEATURES; i++)
            if ((place == 0 || i != best[0]) && (best[place] == UINT32_MAX || features[i] > features[best[place]]))
                best[place] = i;
    }
}

static double of_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -size : size;
}

static void check_record(trefoil_output output, size_t at, size_t row)
{
    double features[FEATURES];
    uint32_t best[BEST];
    const void *found = NULL, *places = NULL;
    size_t bytes = 0, of_places = 0;
    answer(row, features, best);
    OK(trefoil_output_port(output, at, 0, TREFOIL_DTYPE_F16, &found, &bytes));
    OK(trefoil_output_port(output, at, 1, TREFOIL_DTYPE_U32, &places, &of_places));
    if (bytes != FEATURES * sizeof(uint16_t) || of_places != sizeof best || memcmp(places, best, of_places) != 0) {
        wrong++, printf("row %zu: %zu and %zu bytes, or other places\n", row, bytes, of_places);
        return;
    }
    for (size_t i = 0; i < FEATURES; i++)
        if (fabs(of_half(((const uint16_t *)found)[i]) - features[i]) > 2e-3)
            wrong++, printf("row %zu, feature %zu: expected %f\n", row, i, features[i]);
}

static void write_record(trefoil_batch batch, size_t at, size_t row)
{
    uint8_t image[PIXELS * COLOURS];
    float numbers[NUMBERS];
    fill(row, image, numbers);
    OK(trefoil_batch_write_port(batch, at, 0, TREFOIL_DTYPE_U8, image, sizeof image));
    OK(trefoil_batch_write_port(batch, at, 1, TREFOIL_DTYPE_F32, numbers, sizeof numbers));
}

static void fill_record(trefoil_row to, size_t row)
{
    uint8_t image[PIXELS * COLOURS];
    float numbers[NUMBERS];
    void *elements = NULL;
    size_t bytes = 0;
    fill(row, image, numbers);
    OK(trefoil_row_port(to, 0, TREFOIL_DTYPE_U8, &elements, &bytes));
    memcpy(elements, image, bytes);
    OK(trefoil_row_port(to, 1, TREFOIL_DTYPE_F32, &elements, &bytes));
    memcpy(elements, numbers, bytes);
}

static float value(size_t row, size_t token, size_t i)
{
    return (float)((row * 31 + token * 17 + i * 5) % 23) / 16.0f - 0.6f;
}

static void fill_values(size_t row, float *values)
{
    for (size_t i = 0; i < TOKENS * WIDTH; i++)
        values[i] = value(row, i / WIDTH, i % WIDTH);
}

static void write_tokens(trefoil_batch batch, size_t at, size_t row)
{
    float values[TOKENS * WIDTH];
    fill_values(row, values);
    OK(trefoil_batch_write_port(batch, at, 0, TREFOIL_DTYPE_F32, values, sizeof values));
}

static void fill_tokens(trefoil_row to, size_t row)
{
    void *elements = NULL;
    size_t bytes = 0;
    OK(trefoil_row_port(to, 0, TREFOIL_DTYPE_F32, &elements, &bytes));
    fill_values(row, elements);
}

/* x + relu(x a + b) c by plain loops; a holds 7 i mod 11, b i and c 5 i mod 13, each in sixteenths and shifted. */
static void check_tokens(trefoil_output output, size_t at, size_t row)
{
    const void *found = NULL;
    size_t bytes = 0;
    OK(trefoil_output_port(output, at, 0, TREFOIL_DTYPE_F32, &found, &bytes));
    if (bytes != TOKENS * WIDTH * sizeof(float)) {
        wrong++, printf("row %zu: %zu bytes\n", row, bytes);
        return;
    }
    for (size_t token = 0; token < TOKENS; token++) {
        double inner[INNER];
        for (size_t k = 0; k < INNER; k++) {
            inner[k] = (double)k / 16.0 - 0.25;
            for (size_t i = 0; i < WIDTH; i++)
                inner[k] += value(row, token, i) * ((double)((i * INNER + k) * 7 % 11) / 16.0 - 0.3);
            inner[k] = fmax(inner[k], 0.0);
        }
        for (size_t i = 0; i < WIDTH; i++) {
            double expected = value(row, token, i);
            for (size_t k = 0; k < INNER; k++)
                expected += inner[k] * ((double)((k * WIDTH + i) * 5 % 13) / 16.0 - 0.4);
            if (fabs(((const float *)found)[token * WIDTH + i] - expected) > 4e-3)
                wrong++, printf("row %zu, token %zu, value %zu: expected %f\n", row, token, i, expected);
        }
    }
}

static void run(const network *of, trefoil_batch batch)
{
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    for (size_t row = 0; row < ROWS; row++)
        of->write(batch, row, row);
    OK(trefoil_submit(batch, ROWS, &ticket));
    OK(trefoil_wait(ticket, &output));
    for (size_t row = 0; row < ROWS; row++)
        of->check(output, row, row);
    OK(trefoil_release(output));
}

static void single_rows(const network *of, trefoil_engine engine)
{
    trefoil_batcher batcher = 0;
    trefoil_ticket tickets[ROWS];
    OK(trefoil_batcher_build(engine, NULL, &batcher));
    for (size_t at = 0; at < ROWS; at++) {
        trefoil_row row = 0;
        OK(trefoil_batcher_row(batcher, NULL, &row));
        of->fill(row, at);
        OK(trefoil_row_submit(row, &tickets[at]));
    }
    for (size_t at = 0; at < ROWS; at++) {
        trefoil_output output = 0;
        OK(trefoil_wait(tickets[at], &output));
        of->check(output, 0, at);
        OK(trefoil_release(output));
    }
    OK(trefoil_release(batcher));
}

static void answered(const network *of, const char *path, trefoil_device device)
{
    trefoil_model model = 0;
    trefoil_engine engine = 0;
    trefoil_fleet fleet = 0;
    trefoil_batch batch = 0;
    OK(trefoil_model_open(path, &model));
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = ROWS, .check = 1};
    OK(trefoil_engine_build(model, &options, &engine));
    OK(trefoil_acquire(engine, &batch));
    run(of, batch);
    single_rows(of, engine);
    OK(trefoil_release(engine));
    options.device = 0;
    OK(trefoil_fleet_build(model, &options, &device, 1, 0, &fleet));
    OK(trefoil_fleet_acquire(fleet, &batch));
    run(of, batch);
    OK(trefoil_release(fleet));
    OK(trefoil_release(model));
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 64;
    const network records = {write_record, fill_record, check_record}, tokens = {write_tokens, fill_tokens, check_tokens};
    trefoil_device device = 0;
    OK(trefoil_device_open(argc < 4 ? "cpu" : argv[3], &device));
    answered(&records, argv[1], device);
    answered(&tokens, argv[2], device);
    OK(trefoil_release(device));
    puts(wrong == 0 ? "the records hold" : "FAILED");
    return wrong != 0;
}
