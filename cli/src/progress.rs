//! How far loading has come, on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// From this many bytes of weights on, loading takes long enough to show its progress.
const LARGE: usize = 32 << 20;

/// Shows the progress of loading, if standard error is a terminal and there is much to load.
pub fn loading() -> impl FnMut(usize, usize) + 'static {
    let mut bar = None::<ProgressBar>;
    move |done, all| {
        if all < LARGE {
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            // Hidden by itself where standard error is no terminal.
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
