//! Shows the progress of loading a model on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Weights of at least this many bytes take long enough to load to show progress.
const LARGE: usize = 32 << 20;

/// Returns a callback that shows progress if standard error is a terminal and the model is large.
pub fn loading() -> impl FnMut(usize, usize) + 'static {
    let mut bar = None::<ProgressBar>;
    move |done, all| {
        if all < LARGE {
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            // The bar hides itself if standard error is not a terminal.
            let style = ProgressStyle::with_template("loading {wide_bar} {bytes} of {total_bytes}");
            let new = ProgressBar::new(all as u64);
            let new = if let Ok(style) = style { new.with_style(style) } else { new };
            new.tick();
            new
        });
        bar.set_position(done as u64);
        if done == all {
            bar.finish_and_clear();
        }
    }
}
