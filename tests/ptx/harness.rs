//! Runs PTX texts on buffers of the test.

use crate::ptx::{Grid, Kind, Program};

/// The directives in front of a kernel.
pub const HEADER: &str = ".version 9.0\n.target sm_80\n.address_size 64\n";

pub fn read(text: &str) -> Program {
    Program::read(text).unwrap_or_else(|failure| panic!("{failure}\n{text}"))
}

/// A grid of one block with `threads` threads.
pub fn block(threads: u32) -> Grid {
    Grid { blocks: [1; 3], threads: [threads, 1, 1], shared_bytes: 0 }
}

/// Runs the kernel `k` of a text; its parameters are the addresses of the buffers.
pub fn launch(text: &str, grid: Grid, buffers: &mut [&mut [u64]]) -> Result<(), (Kind, String)> {
    launch_of(&read(text), "k", grid, buffers)
}

/// Runs a kernel by its name; its parameters are the addresses of the buffers.
pub fn launch_of(program: &Program, name: &str, grid: Grid, buffers: &mut [&mut [u64]]) -> Result<(), (Kind, String)> {
    let live: Vec<_> = buffers.iter_mut().map(|buffer| buffer.as_mut_ptr_range()).collect();
    let live: Vec<_> = live.into_iter().map(|range| range.start as usize..range.end as usize).collect();
    let arguments: Vec<u8> = live.iter().flat_map(|range| range.start.to_le_bytes()).collect();
    // SAFETY: the buffers are the caller's, and nobody else's while this runs.
    let done = unsafe { program.run(&program.entries[name], &grid, &arguments, &live) };
    done.map_err(|fault| (fault.kind, fault.what))
}

/// The text of a kernel `k` with one parameter, `%out`, and these registers: `%p`, `%h`, `%r`, `%q`, `%f` and `%g` with
/// numbers up to 9, of .pred, .b16, .b32, .b64, .f32 and .f64.
pub fn kernel(body: &str) -> String {
    format!(
        "{HEADER}.visible .entry k(.param .u64 out)\n{{\n.reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<10>;\n.reg \
         .b64 %q<10>, %out; .reg .f32 %f<10>; .reg .f64 %g<10>;\nld.param.u64 %out, [out];\n{body}\nret;\n}}\n"
    )
}

/// The content of `words` words, initially 0, after a kernel of one thread.
pub fn outcome(body: &str, words: usize) -> Vec<u64> {
    let mut out = vec![0; words];
    launch(&kernel(body), block(1), &mut [&mut out]).unwrap_or_else(|(_, what)| panic!("{what}\n{body}"));
    out
}

/// The value in `%d`, of this type, after `instruction` with these values in `%a`, `%b`, `%c` and `%e`.
pub fn value(instruction: &str, to: &str, operands: &[(&str, u64)]) -> u64 {
    let bits = |ty: &str| ty.trim_start_matches(|c: char| !c.is_ascii_digit()).replace("16x2", "32");
    let mut body = format!(".reg .{to} %d;\n");
    for ((ty, value), name) in operands.iter().zip(["a", "b", "c", "e"]) {
        body += &format!(".reg .{ty} %{name}; mov.b{} %{name}, {value:#x};\n", bits(ty));
    }
    body += &format!("{instruction};\nst.global.b{} [%out], %d;\n", bits(to));
    outcome(&body, 1)[0]
}

/// Whether the comparison `instruction` sets `%p1`.
pub fn holds(instruction: &str, ty: &str, operands: &[u64]) -> bool {
    let operands: Vec<_> = operands.iter().map(|value| (ty, *value)).collect();
    value(&format!("{instruction}; selp.b32 %d, 1, 0, %p1"), "b32", &operands) == 1
}

/// Pseudo-random numbers that are the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    /// A number from `-limit` to `limit`.
    pub fn number(&mut self, limit: f64) -> f64 {
        (self.bits() as i64 as f64) / 2_f64.powi(63) * limit
    }
}
