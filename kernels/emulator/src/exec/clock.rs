//! Vector clocks: which accesses of other threads a thread's accesses come after.
//!
//! A warp has an epoch, a number that grows whenever one of its lanes synchronises. A thread's view says, for every thread
//! of the block, up to which epoch that thread's accesses come before its own. Views are shared: after a block barrier all
//! threads have one.

use std::rc::Rc;

/// What a thread knows of all threads of its block.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Epoch known of each thread.
    known: Vec<u32>,
    /// Least epoch known of the threads of each warp.
    floor: Vec<u32>,
}

impl View {
    pub fn new(warps: usize) -> Self {
        Self { known: vec![0; warps * 32], floor: vec![0; warps] }
    }

    #[inline(always)]
    pub fn knows(&self, thread: usize, epoch: u32) -> bool {
        self.known[thread] >= epoch
    }

    /// Whether an epoch is known of all lanes of a warp that a mask names.
    #[inline(always)]
    pub fn knows_all(&self, warp: usize, mask: u32, epoch: u32) -> bool {
        self.floor[warp] >= epoch
            || (0..32).filter(|lane| mask >> lane & 1 == 1).all(|lane| self.known[warp * 32 + lane] >= epoch)
    }

    fn join(&mut self, other: &View) {
        for (mine, theirs) in self.known.iter_mut().zip(&other.known) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn settle(&mut self) {
        for (floor, lanes) in self.floor.iter_mut().zip(self.known.chunks(32)) {
            *floor = lanes.iter().copied().min().unwrap_or(0);
        }
    }
}

/// The clock of a warp.
#[derive(Debug)]
pub(super) struct Clock {
    pub epoch: u32,
    views: Vec<Rc<View>>,
}

impl Clock {
    pub fn new(view: &Rc<View>) -> Self {
        Self { epoch: 1, views: vec![Rc::clone(view); 32] }
    }

    #[inline(always)]
    pub fn view(&self, lane: usize) -> &View {
        &self.views[lane]
    }

    /// Adds what lanes did and know to a view that others will receive.
    pub fn publish(&mut self, warp: usize, mask: u32, into: &mut View) {
        let mut last: Option<&Rc<View>> = None;
        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
            let view = &self.views[lane];
            if !last.is_some_and(|last| Rc::ptr_eq(last, view)) {
                into.join(view);
            }
            last = Some(view);
            let own = &mut into.known[warp * 32 + lane];
            *own = (*own).max(self.epoch);
        }
        self.epoch += 1;
    }

    /// Gives lanes a view.
    pub fn receive(&mut self, mask: u32, view: &Rc<View>) {
        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
            self.views[lane] = Rc::clone(view);
        }
    }

    /// Orders lanes of this warp among each other.
    pub fn meet(&mut self, warp: usize, warps: usize, mask: u32) {
        let mut view = View::new(warps);
        self.publish(warp, mask, &mut view);
        view.settle();
        self.receive(mask, &Rc::new(view));
    }
}

/// Gathers the views of those who arrive at a barrier.
#[derive(Debug, Default)]
pub(super) struct Gathering(Option<View>);

impl Gathering {
    pub fn add(&mut self, clock: &mut Clock, warp: usize, warps: usize, mask: u32) {
        clock.publish(warp, mask, self.0.get_or_insert_with(|| View::new(warps)));
    }

    /// The view of all who arrived; the next gathering starts anew.
    pub fn take(&mut self, warps: usize) -> Rc<View> {
        let mut view = self.0.take().unwrap_or_else(|| View::new(warps));
        view.settle();
        Rc::new(view)
    }
}
