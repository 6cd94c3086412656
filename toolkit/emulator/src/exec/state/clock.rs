//! Vector clocks, which tell which accesses of other threads come before the accesses of a thread.
//!
//! A warp has an epoch, a number that grows each time one of its lanes synchronises. Each thread has a view. For every
//! thread of the cluster, the view holds an epoch: that thread's accesses up to this epoch come before the owner's next
//! access. The view holds the same for threads of other clusters that released something to the owner. A block outside
//! any cluster counts as a cluster of one. Threads may share a view, as all threads of a block do after a barrier.
//!
//! A view has one warp more than the cluster. That warp represents the asynchronous proxy, and each of its lanes for
//! the copies of some mbarriers.

use super::lane_mask::lanes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An epoch for each thread of a cluster.
pub(crate) type Epochs = Arc<[u32]>;
/// Epochs of the threads of other clusters, by the number of the cluster.
pub(crate) type Others = BTreeMap<u32, Epochs>;

/// The view of a thread: for each other thread, the epoch up to which its accesses come before the owner's next access.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The epoch of each thread of the cluster.
    epochs: Vec<u32>,
    /// The smallest epoch of each warp.
    floor: Vec<u32>,
    /// The epochs of threads of other clusters.
    others: Option<Arc<Others>>,
    /// The epochs up to which writes are also visible to the asynchronous proxy.
    proxied: Option<Epochs>,
}

/// The cluster number in [`Others`] that says that the launches ahead of a dependent one come before. No cluster has
/// this number.
const LAUNCHES_AHEAD: u32 = u32::MAX;

/// Raises each epoch to at least its counterpart in another list.
fn join_epochs(mine: &mut [u32], theirs: &[u32]) {
    mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
}

/// Joins epochs that may be shared or missing.
fn join_shared(mine: &mut Option<Epochs>, theirs: &Option<Epochs>) {
    match (mine, theirs) {
        (Some(mine), Some(theirs)) if !Arc::ptr_eq(mine, theirs) => join_epochs(Arc::make_mut(mine), theirs),
        (mine @ None, Some(theirs)) => *mine = Some(Arc::clone(theirs)),
        _ => {}
    }
}

/// Joins the epochs of threads of other clusters.
pub(crate) fn join_others(mine: &mut Arc<Others>, theirs: &Arc<Others>) {
    if Arc::ptr_eq(mine, theirs) {
        return;
    }
    let mine = Arc::make_mut(mine);
    for (&block, epochs) in theirs.iter() {
        match mine.get_mut(&block) {
            Some(existing) if Arc::ptr_eq(existing, epochs) => {}
            Some(existing) => join_epochs(Arc::make_mut(existing), epochs),
            None => drop(mine.insert(block, Arc::clone(epochs))),
        }
    }
}

/// Removes the fact that a dependent launch has waited from the accesses it hands on. The next dependent launch must
/// wait itself.
pub(crate) fn forget_wait(others: &mut Arc<Others>) {
    if others.contains_key(&LAUNCHES_AHEAD) {
        Arc::make_mut(others).remove(&LAUNCHES_AHEAD);
    }
}

impl View {
    /// Creates a view of `warps` warps that have not accessed anything.
    pub fn new(warps: usize) -> Self {
        Self { epochs: vec![0; warps * 32], floor: vec![0; warps], others: None, proxied: None }
    }

    /// Returns the view with the accesses of threads of other clusters that come before.
    pub fn after(self, others: Option<&Arc<Others>>) -> Self {
        Self { others: others.cloned(), ..self }
    }

    /// Returns the epochs of threads of other clusters.
    pub fn others(&self) -> Option<&Arc<Others>> {
        self.others.as_ref()
    }

    /// Returns whether a thread's accesses up to an epoch come before.
    #[inline(always)]
    pub fn knows(&self, thread: usize, epoch: u32) -> bool {
        self.epochs[thread] >= epoch
    }

    /// Returns whether the accesses of all lanes in a mask up to an epoch come before.
    #[inline(always)]
    pub fn knows_all(&self, warp: usize, mask: u32, epoch: u32) -> bool {
        self.floor[warp] >= epoch || knows_lanes(&self.epochs, warp, mask, epoch)
    }

    /// Returns whether the accesses of lanes of another cluster up to an epoch come before.
    pub fn knows_other(&self, block: u32, warp: usize, mask: u32, epoch: u32) -> bool {
        let epochs = self.others.as_ref().and_then(|others| others.get(&block));
        epochs.is_some_and(|epochs| knows_lanes(epochs, warp, mask, epoch))
    }

    /// Returns whether a thread's writes up to an epoch are visible to the asynchronous proxy. The last warp of a view
    /// is that proxy itself, which sees its own writes.
    pub fn is_proxied(&self, thread: usize, epoch: u32) -> bool {
        let own = thread >= self.epochs.len() - 32;
        own || self.proxied.as_ref().is_some_and(|epochs| epochs[thread] >= epoch)
    }

    /// Joins another view, but leaves the smallest epochs of the warps to [`View::settle`].
    fn join(&mut self, other: &View) {
        join_epochs(&mut self.epochs, &other.epochs);
        join_shared(&mut self.proxied, &other.proxied);
        match (&mut self.others, &other.others) {
            (Some(mine), Some(theirs)) => join_others(mine, theirs),
            (mine @ None, Some(theirs)) => *mine = Some(Arc::clone(theirs)),
            _ => {}
        }
    }

    /// Recomputes the smallest epoch of each warp.
    fn settle(&mut self) {
        for (floor, lanes) in self.floor.iter_mut().zip(self.epochs.chunks(32)) {
            *floor = lanes.iter().copied().min().unwrap_or(0);
        }
    }

    /// Returns whether the launches ahead of a dependent one come before.
    pub fn has_waited(&self) -> bool {
        self.others.as_ref().is_some_and(|others| others.contains_key(&LAUNCHES_AHEAD))
    }

    /// Returns the epochs that a thread with this view releases: the view, and its own accesses up to `epoch`. `block`
    /// is the number of its cluster.
    pub fn released(&self, block: u32, thread: usize, epoch: u32) -> Arc<Others> {
        let mut epochs = self.epochs.clone();
        epochs[thread] = epochs[thread].max(epoch);
        let mut others = self.others.as_deref().cloned().unwrap_or_default();
        others.insert(block, epochs.into());
        Arc::new(others)
    }

    /// Adds epochs that others released. `block` is the number of the thread's cluster.
    pub fn acquire(&mut self, block: u32, released: &Arc<Others>) {
        if let Some(own) = released.get(&block) {
            join_epochs(&mut self.epochs, own);
            self.settle();
        }
        match &mut self.others {
            Some(others) => join_others(others, released),
            others @ None => *others = Some(Arc::clone(released)),
        }
    }
}

fn knows_lanes(epochs: &[u32], warp: usize, mask: u32, epoch: u32) -> bool {
    lanes(mask).all(|lane| epochs[warp * 32 + lane] >= epoch)
}

/// The clock of a warp: its epoch, and the views of its lanes.
#[derive(Debug)]
pub(crate) struct WarpClock {
    /// The index of the warp in its cluster of blocks.
    pub warp: usize,
    pub epoch: u32,
    views: Views,
}

/// The views of the lanes of a warp.
#[derive(Debug)]
struct Views {
    /// The view that all lanes share while `own` is `None`.
    shared: Arc<View>,
    own: Option<Box<[Arc<View>; 32]>>,
}

impl Views {
    /// Creates the views of lanes that share one view.
    fn new(shared: Arc<View>) -> Self {
        Self { shared, own: None }
    }

    /// Returns a separate view for each lane.
    fn each(&mut self) -> &mut [Arc<View>; 32] {
        self.own.get_or_insert_with(|| Box::new(std::array::from_fn(|_| Arc::clone(&self.shared))))
    }
}

impl WarpClock {
    pub fn new(warp: usize, view: &Arc<View>) -> Self {
        Self { warp, epoch: 1, views: Views::new(Arc::clone(view)) }
    }

    #[inline(always)]
    pub fn view(&self, lane: usize) -> &Arc<View> {
        match &self.views.own {
            None => &self.views.shared,
            Some(each) => &each[lane],
        }
    }

    /// Returns whether all lanes share one view.
    #[inline(always)]
    pub fn has_one_view(&self) -> bool {
        self.views.own.is_none()
    }

    /// Returns a lane's view to modify. The lane no longer shares it.
    pub fn view_mut(&mut self, lane: usize) -> &mut View {
        Arc::make_mut(&mut self.views.each()[lane])
    }

    /// Adds the views of some lanes, and their own accesses so far, to a view that other threads will receive.
    pub fn publish(&mut self, mask: u32, into: &mut View) {
        let mut last: Option<&Arc<View>> = None;
        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
            let view = self.view(lane);
            if !last.is_some_and(|last| Arc::ptr_eq(last, view)) {
                into.join(view);
            }
            last = Some(view);
            let own = &mut into.epochs[self.warp * 32 + lane];
            *own = (*own).max(self.epoch);
        }
        self.epoch += 1;
    }

    /// Replaces the views of some lanes by a view that contains them.
    pub fn receive(&mut self, mask: u32, view: &Arc<View>) {
        if mask == u32::MAX {
            self.views = Views::new(Arc::clone(view));
            return;
        }
        let views = self.views.each();
        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
            views[lane] = Arc::clone(view);
        }
    }

    /// Joins a view to the views of some lanes.
    pub fn learn(&mut self, mask: u32, view: &View) {
        if self.views.own.is_none() && mask == u32::MAX {
            let shared = Arc::make_mut(&mut self.views.shared);
            shared.join(view);
            shared.settle();
            return;
        }
        let views = self.views.each();
        // Lanes that shared a view share the new one.
        let mut last: Option<(Arc<View>, Arc<View>)> = None;
        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
            let old = &mut views[lane];
            let new = match &last {
                Some((before, after)) if Arc::ptr_eq(before, old) => Arc::clone(after),
                _ => {
                    let mut joined = View::clone(old);
                    joined.join(view);
                    joined.settle();
                    Arc::new(joined)
                }
            };
            last = Some((std::mem::replace(old, Arc::clone(&new)), new));
        }
    }

    /// Orders the launches ahead of a dependent one before the next accesses of some lanes.
    pub fn wait_for_launches(&mut self, mask: u32) {
        let ahead = Arc::new(Others::from([(LAUNCHES_AHEAD, Epochs::from([]))]));
        let mut view = View::new(0);
        view.others = Some(ahead);
        self.learn(mask, &view);
    }

    /// Orders lanes of this warp with each other.
    pub fn meet(&mut self, warps: usize, mask: u32) {
        let mut view = View::new(warps);
        self.publish(mask, &mut view);
        view.settle();
        self.receive(mask, &Arc::new(view));
    }

    /// Makes the writes of some lanes, and all writes that come before them, visible to the asynchronous proxy.
    pub fn proxy_fence(&mut self, mask: u32) {
        let views = self.views.each();
        for lane in (0..32).filter(|lane| mask >> lane & 1 == 1) {
            let view = Arc::make_mut(&mut views[lane]);
            let mut epochs = view.epochs.clone();
            epochs[self.warp * 32 + lane] = self.epoch;
            join_shared(&mut view.proxied, &Some(epochs.into()));
        }
        self.epoch += 1;
    }
}

/// The joined views of the threads that have arrived at a barrier.
#[derive(Debug, Default)]
pub(crate) struct Gathering(Option<View>);

impl Gathering {
    /// Adds the views of lanes that arrive.
    pub fn add(&mut self, clock: &mut WarpClock, warps: usize, mask: u32) {
        clock.publish(mask, self.0.get_or_insert_with(|| View::new(warps)));
    }

    /// Adds the accesses of one thread up to an epoch.
    pub fn add_thread(&mut self, thread: usize, epoch: u32, warps: usize) {
        let own = &mut self.0.get_or_insert_with(|| View::new(warps)).epochs[thread];
        *own = (*own).max(epoch);
    }

    /// Joins the arrivals of another gathering, and empties that one.
    pub fn absorb(&mut self, other: &mut Gathering) {
        match (&mut self.0, other.0.take()) {
            (Some(mine), Some(theirs)) => mine.join(&theirs),
            (mine @ None, theirs) => *mine = theirs,
            _ => {}
        }
    }

    /// Returns the joined view of all arrivals, and starts a new gathering.
    pub fn take(&mut self, warps: usize) -> Arc<View> {
        let mut view = self.0.take().unwrap_or_else(|| View::new(warps));
        view.settle();
        Arc::new(view)
    }
}
