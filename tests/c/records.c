/* A network that reads an image and a vector of numbers, and gives features in halves and the places of the largest, by an
 * engine, its batcher and a fleet, each behind the hazard checker: records RECORDS.onnx [cpu | cuda:N] */
#include <math.h>
#include <string.h>

#include "expect.h"

enum { PIXELS = 5 * 7, COLOURS = 3, NUMBERS = 2, OF_COLOURS = 4, FEATURES = OF_COLOURS + NUMBERS, BEST = 2, ROWS = 3 };

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

static void check(trefoil_output output, size_t at, size_t row)
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

static void write_row(trefoil_batch batch, size_t at, size_t row)
{
    uint8_t image[PIXELS * COLOURS];
    float numbers[NUMBERS];
    fill(row, image, numbers);
    OK(trefoil_batch_write_port(batch, at, 0, TREFOIL_DTYPE_U8, image, sizeof image));
    OK(trefoil_batch_write_port(batch, at, 1, TREFOIL_DTYPE_F32, numbers, sizeof numbers));
}

static void run(trefoil_batch batch)
{
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    for (size_t row = 0; row < ROWS; row++)
        write_row(batch, row, row);
    OK(trefoil_submit(batch, ROWS, &ticket));
    OK(trefoil_wait(ticket, &output));
    for (size_t row = 0; row < ROWS; row++)
        check(output, row, row);
    OK(trefoil_release(output));
}

static void single_rows(trefoil_engine engine)
{
    trefoil_batcher batcher = 0;
    trefoil_ticket tickets[ROWS];
    OK(trefoil_batcher_build(engine, NULL, &batcher));
    for (size_t at = 0; at < ROWS; at++) {
        uint8_t image[PIXELS * COLOURS];
        float numbers[NUMBERS];
        void *elements = NULL;
        size_t bytes = 0;
        trefoil_row row = 0;
        fill(at, image, numbers);
        OK(trefoil_batcher_row(batcher, NULL, &row));
        OK(trefoil_row_port(row, 0, TREFOIL_DTYPE_U8, &elements, &bytes));
        memcpy(elements, image, bytes);
        OK(trefoil_row_port(row, 1, TREFOIL_DTYPE_F32, &elements, &bytes));
        memcpy(elements, numbers, bytes);
        OK(trefoil_row_submit(row, &tickets[at]));
    }
    for (size_t at = 0; at < ROWS; at++) {
        trefoil_output output = 0;
        OK(trefoil_wait(tickets[at], &output));
        check(output, 0, at);
        OK(trefoil_release(output));
    }
    OK(trefoil_release(batcher));
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 64;
    trefoil_device device = 0;
    trefoil_model model = 0;
    trefoil_engine engine = 0;
    trefoil_fleet fleet = 0;
    trefoil_batch batch = 0;
    OK(trefoil_device_open(argc < 3 ? "cpu" : argv[2], &device));
    OK(trefoil_model_open(argv[1], &model));
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = ROWS, .check = 1};
    OK(trefoil_engine_build(model, &options, &engine));
    OK(trefoil_acquire(engine, &batch));
    run(batch);
    single_rows(engine);
    OK(trefoil_release(engine));
    options.device = 0;
    OK(trefoil_fleet_build(model, &options, &device, 1, 0, &fleet));
    OK(trefoil_fleet_acquire(fleet, &batch));
    run(batch);
    OK(trefoil_release(fleet));
    OK(trefoil_release(model));
    OK(trefoil_release(device));
    puts(wrong == 0 ? "the records hold" : "FAILED");
    return wrong != 0;
}
