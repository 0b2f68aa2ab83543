// Pictures for the examples: binary PPM files in, resized parts out. A real program has a library for photos here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

// Height x width x 3 bytes: red, green and blue of each pixel.
struct picture {
    std::size_t width = 0, height = 0;
    std::vector<std::uint8_t> pixels;

    // Sides up to this are read.
    static constexpr std::size_t most = 1 << 14;

    static picture open(const std::string &path) {
        std::ifstream file(path, std::ios::binary);
        std::string magic;
        std::size_t largest = 0;
        picture read;
        file >> magic >> read.width >> read.height >> largest;
        file.get();
        const auto fits = [](std::size_t side) { return side > 0 && side <= most; };
        if (!file || magic != "P6" || largest != 255 || !fits(read.width) || !fits(read.height))
            throw std::runtime_error(path + ": not a binary PPM");
        read.pixels.resize(read.width * read.height * 3);
        file.read(reinterpret_cast<char *>(read.pixels.data()), static_cast<std::streamsize>(read.pixels.size()));
        if (!file) throw std::runtime_error(path + ": cut off");
        return read;
    }

    // The colour of a channel at a place between pixels, from four of them.
    float at(float x, float y, std::size_t channel) const {
        x = std::clamp(x, 0.0f, static_cast<float>(width - 1)), y = std::clamp(y, 0.0f, static_cast<float>(height - 1));
        const std::size_t left = static_cast<std::size_t>(x), top = static_cast<std::size_t>(y);
        const std::size_t right = std::min(left + 1, width - 1), bottom = std::min(top + 1, height - 1);
        const auto pixel = [&](std::size_t column, std::size_t row) -> float {
            return pixels[(row * width + column) * 3 + channel];
        };
        const float across = x - static_cast<float>(left), down = y - static_cast<float>(top);
        const float above = pixel(left, top) * (1 - across) + pixel(right, top) * across;
        const float below = pixel(left, bottom) * (1 - across) + pixel(right, bottom) * across;
        return above * (1 - down) + below * down;
    }
};

// The sizes behind NAME=SIZE arguments.
inline std::vector<std::pair<std::string, std::size_t>> sizes_of(char **begin, char **end) {
    std::vector<std::pair<std::string, std::size_t>> sizes;
    for (; begin != end; begin++) {
        const std::string argument = *begin;
        const std::size_t sign = argument.find('=');
        if (sign == std::string::npos) throw std::runtime_error(argument + ": expected NAME=SIZE");
        sizes.emplace_back(argument.substr(0, sign), std::stoul(argument.substr(sign + 1)));
    }
    return sizes;
}
