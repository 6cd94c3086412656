//! Elementwise changes of rows and logits.

use kernels::scaling::Factor;
use workbench::cases::scaling::{elements, logits, products, sums};
use workbench::number::Type;

use crate::frame::gpu::{Gpu, TARGETS};

#[test]
fn logits_are_scaled_and_capped() {
    for (i, (width, factor, cap)) in [(1, 1.0, 30.0), (257, 0.25, 0.0), (1000, 2.0, 5.0)].into_iter().enumerate() {
        Gpu::new(TARGETS[i % 2].0).run(&logits(3, width, factor, cap));
    }
}

#[test]
fn rows_are_scaled() {
    for (i, ty) in Type::ALL.into_iter().enumerate() {
        for width in [8, 2056] {
            Gpu::new(TARGETS[i].0).run(&elements(ty, 3, width));
        }
    }
}

#[test]
fn rows_are_added_and_multiplied() {
    for (i, ty) in Type::ALL.into_iter().enumerate() {
        for width in [8, 2056] {
            Gpu::new(TARGETS[i].0).run(&sums(ty, 3, width));
            for factor in Factor::ALL {
                Gpu::new(TARGETS[i].0).run(&products(ty, 3, width, (width + 16, factor)));
            }
        }
    }
}
