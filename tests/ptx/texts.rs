//! Parts that a text may have, and texts that are refused.

use crate::harness::{HEADER, kernel, read};
use crate::ptx::Program;

/// The error for a kernel with this body.
fn refused(body: &str) -> String {
    match Program::read(&kernel(body)) {
        Ok(_) => panic!("{body} is taken"),
        Err(failure) => failure.to_string(),
    }
}

#[test]
fn unknown_instructions_are_named() {
    for (body, part) in [
        ("add.s32 %r1, %r2, %r3;\nfrobnicate.u32 %r1, %r2;", "ptx line 10: frobnicate.u32: "),
        ("add.s32.wild %r1, %r2, %r3;", "add.s32.wild: the modifier .wild"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r1}, {%f1};", "mma.sync"),
        ("fma.f32 %f1, %f2, %f3, %f4;", "how it rounds"),
        ("fma.rz.f64 %g1, %g2, %g3, %g4;", "fma.rz.f64"),
        ("cvt.f16.f32 %h1, %f1;", "how it rounds"),
        ("cvt.rn.s32.f32 %r1, %f1;", "cvt.rn.s32.f32"),
        ("prmt.b32.f4e %r1, %r2, %r3, %r4;", ".f4e"),
        ("ld.global.v8.f32 %f1, [%out];", ".v8"),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%q1, {%f1, %f2}];", "tex.2d"),
        ("setp.lt.b32 %p1, %r1, %r2;", "comparison"),
        ("atom.global.add.f16 %h1, [%out], %h2;", "atom.global.add.f16"),
    ] {
        let said = refused(body);
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn operands_have_the_types_of_instructions() {
    for body in [
        "add.s32 %r1, %r2, %f1;",
        "add.f32 %f1, %f2, 1;",
        "add.s32 %r1, %r2, %q1;",
        "add.s32 %r1, %r2, 0x100000000;",
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %r2, %r3, %r4;",
        "add.s32 %r1, %r2, unknown;",
        "add.s32 %r12, %r2, %r3;",
        "mov.b32 %r1, %q1;",
        "ld.global.f64 %f1, [%out];",
        "ld.global.v2.f32 %f1, [%out];",
        "ld.shared.u32 %r1, [out];",
        "st.global.u32 [%out], %h1;",
        "mul.wide.s32 %r1, %r2, %r3;",
        "selp.b32 %r1, %r2, %r3, %r4;",
        "bra nowhere;",
        "{ here: } bra here;",
        "call f, (%r1);",
        "here: here:",
        ".reg .b32 %r1;",
        "shfl.bfly.b32 %r1, %r2, 1, 31;",
    ] {
        refused(body);
    }
}

#[test]
fn texts_have_a_form() {
    for text in [
        "no ptx",
        ".version 9.0\n.entry k(.param .u64 a) {",
        ".version 9.0\n.entry k(.param .u64 a) { ret; } .entry k() { ret; }",
        ".func f(.param .b32 a);",
        ".func f(.param .b32 a); .func f(.param .b64 a) { ret; }",
        ".global .u32 x[2] = {1, 2, 3};",
        ".global .u32 x = 0x1ffffffff;",
        ".entry k() .maxwhatever 3 { ret; }",
        "/* a comment */",
        ".tex .u64 t;",
    ] {
        assert!(Program::read(text).is_err(), "{text}");
    }
}

#[test]
fn what_changes_nothing_is_passed_over() {
    let text = format!(
        "// first\n{HEADER}.file 1 \"a.cu\", 5, 6\n.extern .shared .align 16 .b8 smem[];\n.weak .func f() {{ ret; }}\n.visible .entry k(.param \
         .align 64 .b8 p[128]) // why\n.reqntid 8, 4 .minnctapersm 2 .maxnreg 64\n{{ .loc 1 5 6, function_name x, inlined_at 1 5 5\n \
         .pragma \"nounroll\"; griddepcontrol.wait; membar.gl; fence.acq_rel.gpu; griddepcontrol.launch_dependents; ;\n ret;\n}}\n.section \
         .debug_str {{ .b8 1, 2 }}"
    );
    let entry = &read(&text).entries["k"];
    assert_eq!((entry.most_threads, entry.threads), (32, Some([8, 4, 1])));
}
