//! Places that the launch of a product leaves for the next one.
//!
//! A launch begins before the one before it has ended, but only those of its blocks that find a place. Of tiles of few rows
//! a multiprocessor has two blocks at a time. A block that begins with its launch copies weights while the launch before it
//! ends; one that has to wait for a place does so when the rows are there. So a product of few rows in front of another
//! one costs more the more places it takes. Norms between them take none. What is not a product of few rows, such as
//! attention, has all shared memory of a multiprocessor and begins behind such a product in any case.

use crate::plan::product::TIMED_ROWS;
use crate::plan::{Choices, Kernel, Plan, ProductKernel, ProductSizes, Step, StepOp};

/// Clocks of the next product for each block of a launch. In ViT-B/16 and BERT-base with 128 tokens, fc1 of 128 rows is the
/// faster by 64x72 from 5 on, and fc2 of 197 rows by k in 4 up to 10.
const BLOCK: f64 = 7.0;

/// Takes for each product of few rows, if the next step but norms is another one, the kernel for which both are the soonest,
/// unless the program has chosen one.
pub(super) fn leave(plan: &mut Plan, choices: &Choices) {
    for at in 0..plan.steps.len() {
        if let Some(kernel) = kernel(plan, at, choices) {
            plan.steps[at].kernel = Kernel::Sm90Product(kernel);
        }
    }
}

fn kernel(plan: &Plan, at: usize, choices: &Choices) -> Option<ProductKernel> {
    let step = &plan.steps[at];
    let sizes = of_few_rows(plan, step).filter(|_| !choices.contains_key(&step.name))?;
    let next = plan.steps[at + 1..].iter().find(|step| !matches!(step.op, StepOp::RowNorm(_)))?;
    of_few_rows(plan, next)?;
    let clocks = |kernel: ProductKernel| sizes.clocks(kernel, &plan.limits) + BLOCK * sizes.blocks(kernel) as f64;
    let kernels = sizes.kernels(&plan.limits).into_iter().filter(|kernel| kernel.tile.is_split());
    kernels.min_by(|a, b| clocks(*a).total_cmp(&clocks(*b)))
}

/// The sizes of a step's product if its kernel is for few rows, and if it has no more rows than those that were timed.
fn of_few_rows(plan: &Plan, step: &Step) -> Option<ProductSizes> {
    match (&step.op, step.kernel) {
        (StepOp::Product(of), Kernel::Sm90Product(kernel)) if kernel.tile.is_split() => {
            Some(of.sizes(plan.images)).filter(|sizes| sizes.m <= TIMED_ROWS)
        }
        _ => None,
    }
}
