// Finds objects in a picture with a YOLO network (YOLOv8 or later), as Ultralytics exports it to ONNX.
//
//     detect MODEL.onnx PICTURE.ppm [NAME=SIZE...]
//
// NAME=SIZE gives the size of a free dimension of the file. examples/detect.rs is the same in Rust, with more comments.
#include <cmath>
#include <iostream>

#include <trefoil.hpp>

#include "ppm.hpp"

constexpr float least_score = 0.25f, most_in_common = 0.45f, gray = 114.0f / 255.0f;

// Left, top, right and bottom edge.
struct found {
    std::size_t which;
    float score, edges[4];
};

static float area(float left, float top, float right, float bottom) {
    return std::max(right - left, 0.0f) * std::max(bottom - top, 0.0f);
}

static float in_common(const found &a, const found &b) {
    const float common = area(std::max(a.edges[0], b.edges[0]), std::max(a.edges[1], b.edges[1]),
                              std::min(a.edges[2], b.edges[2]), std::min(a.edges[3], b.edges[3]));
    const auto of = [](const float *e) { return area(e[0], e[1], e[2], e[3]); };
    return common / (of(a.edges) + of(b.edges) - common);
}

// The boxes in rows of one number for each place, best first, without those that are the same thing as a better one.
static std::vector<found> boxes(trefoil::span<const float> values, std::size_t rows, std::size_t places) {
    const auto at = [&](std::size_t row, std::size_t place) { return values[row * places + place]; };
    std::vector<found> all, kept;
    for (std::size_t place = 0; place < places; place++) {
        std::size_t best = 4;
        for (std::size_t row = 5; row < rows; row++)
            if (at(row, place) > at(best, place)) best = row;
        const float x = at(0, place), y = at(1, place), w = at(2, place) / 2, h = at(3, place) / 2;
        if (at(best, place) >= least_score) all.push_back({best - 4, at(best, place), {x - w, y - h, x + w, y + h}});
    }
    std::stable_sort(all.begin(), all.end(), [](const found &a, const found &b) { return a.score > b.score; });
    for (const found &one : all) {
        const auto same = [&](const found &other) {
            return other.which == one.which && in_common(other, one) > most_in_common;
        };
        if (std::none_of(kept.begin(), kept.end(), same)) kept.push_back(one);
    }
    return kept;
}

int main(int argc, char **argv) try {
    if (argc < 3) return std::cerr << "usage: detect MODEL.onnx PICTURE.ppm [NAME=SIZE...]\n", 64;
    trefoil::check_abi();
    const picture photo = picture::open(argv[2]);
    const trefoil::model model = trefoil::model::at(argv[1], sizes_of(argv + 3, argv + argc));
    trefoil::engine_options options;
    options.batch = 1;
    const trefoil::engine engine(model, options);
    const trefoil::port input = engine.input_port(0), answer = engine.output_port(0);
    if (input.rank != 3 || answer.rank != 2) throw std::runtime_error("not a network from an image to boxes");
    const std::size_t height = input.dims[1], width = input.dims[2];

    // Letterboxed: the photo in the middle, gray beside it.
    const float scale = std::min(static_cast<float>(width) / photo.width, static_cast<float>(height) / photo.height);
    const auto drawn = [&](std::size_t side, std::size_t most) {
        return std::min(most, std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(side * scale))));
    };
    const std::size_t drawn_width = drawn(photo.width, width), drawn_height = drawn(photo.height, height);
    const std::size_t left = (width - drawn_width) / 2, top = (height - drawn_height) / 2;
    trefoil::batch batch = engine.acquire();
    const auto planes = batch.port<float>(0, 0);
    for (std::size_t channel = 0, i = 0; channel < 3; channel++)
        for (std::size_t y = 0; y < height; y++)
            for (std::size_t x = 0; x < width; x++, i++) {
                const bool inside = x - left < drawn_width && y - top < drawn_height; // x < left wraps around
                planes[i] = inside ? photo.at((x - left + 0.5f) / scale - 0.5f, (y - top + 0.5f) / scale - 0.5f, channel) / 255
                                   : gray;
            }
    const trefoil::output output = std::move(batch).submit(1).wait();

    const auto inside = [&](float at, std::size_t begin, std::size_t side) {
        return std::clamp((at - begin) / scale, 0.0f, static_cast<float>(side));
    };
    for (const found &one : boxes(output.port<float>(0, 0), answer.dims[0], answer.dims[1]))
        std::cout << "class " << one.which << ' ' << std::round(one.score * 100) / 100 << " at "
                  << std::round(inside(one.edges[0], left, photo.width)) << ','
                  << std::round(inside(one.edges[1], top, photo.height)) << " to "
                  << std::round(inside(one.edges[2], left, photo.width)) << ','
                  << std::round(inside(one.edges[3], top, photo.height)) << '\n';
    return 0;
} catch (const std::exception &problem) {
    std::cerr << problem.what() << '\n';
    return 1;
}
