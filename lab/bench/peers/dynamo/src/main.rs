//! Replays an operations file of `conductor-lab bench index --export` into Dynamo's compressed concurrent
//! radix tree (CRTC) and prints one JSON object.
//!
//!   crtc OPS time|mem
//!   crtc OPS together [N [SECONDS]]
//!   crtc OPS answers OUT
//!
//! time:     all operations on one thread; rates by CPU time, latencies by the wall clock
//! mem:      stores and removals only; events are made one at a time
//! together: the second half of the file by N writers and N readers (1), each alone and side by side: this for SECONDS
//!           (0) at least
//! answers:  writes one hash of its rows per query to OUT, eight bytes each, little-endian
//!
//! The crate applies events only in `SyncIndexer::worker`, a loop over a channel. The tape of a run is
//! in the channel before the clock starts. A `Flush` on the tape wakes its receiver on the worker's own
//! thread, and that waker asks the queries. So one thread does everything, in the order of the file.
//! What the channel costs is measured without the tree and taken off.
use dynamo_kv_router::ConcurrentRadixTreeCompressed as Tree;
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::*;
use std::future::Future;
use std::hint::black_box;
use std::io::{BufReader, Read, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

const QUERY: u32 = 0;
const STORE: u32 = 1;
const HASH_ONLY: u32 = 1 << 8;
/// Classes of queries, by number.
const CLASSES: [&str; 7] = ["all", "H=1", "H=8", "H=64", "gate", "miss", "mixed"];

struct Op {
    kind: u32,
    has_parent: bool,
    owner: u32,
    from: usize,
    to: usize,
    flags: u32,
    parent: u64,
}

impl Op {
    fn len(&self) -> u64 {
        (self.to - self.from) as u64
    }
    /// The crate has no event for blocks without tokens.
    fn applies(&self) -> bool {
        self.kind != QUERY && self.flags & HASH_ONLY == 0
    }
    fn class(&self) -> usize {
        (self.flags >> 16 & 0xff) as usize
    }
    fn name(&self, seq: u64) -> ExternalSequenceBlockHash {
        let mut h = seq ^ (u64::from(self.flags & 0xff) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        h = (h ^ h >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        h = (h ^ h >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ExternalSequenceBlockHash(h ^ h >> 31)
    }
}

struct Ops {
    ops: Vec<Op>,
    seq: Vec<u64>,
    local: Vec<LocalBlockHash>,
    gone: Vec<u64>,
    unique: u64,
    members: u64,
}

impl Ops {
    fn open(path: &str) -> std::io::Result<Ops> {
        let mut r = BufReader::with_capacity(1 << 20, std::fs::File::open(path)?);
        let mut magic = [0; 8];
        r.read_exact(&mut magic)?;
        assert_eq!(&magic, b"H2HOPS01", "{path} is not an operations file");
        let _owners = u32_of(&mut r)?;
        let count = u32_of(&mut r)?;
        let [seq, gone, unique, members] = [u64_of(&mut r)?, u64_of(&mut r)?, u64_of(&mut r)?, u64_of(&mut r)?];
        let mut ops = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let [kind, has, owner, from, to, flags] =
                [u32_of(&mut r)?, u32_of(&mut r)?, u32_of(&mut r)?, u32_of(&mut r)?, u32_of(&mut r)?, u32_of(&mut r)?];
            ops.push(Op { kind, has_parent: has == 1, owner, from: from as usize, to: to as usize, flags, parent: u64_of(&mut r)? });
        }
        let mut list = |n: u64| (0..n).map(|_| u64_of(&mut r)).collect::<std::io::Result<Vec<u64>>>();
        let (seq, local, gone) = (list(seq)?, list(seq)?, list(gone)?);
        Ok(Ops { ops, seq, local: local.into_iter().map(LocalBlockHash).collect(), gone, unique, members })
    }

    fn event(&self, o: &Op) -> WorkerTask {
        let data = if o.kind == STORE {
            let blocks = (o.from..o.to)
                .map(|i| KvCacheStoredBlockData { block_hash: o.name(self.seq[i]), tokens_hash: self.local[i], mm_extra_info: None })
                .collect();
            KvCacheEventData::Stored(KvCacheStoreData { parent_hash: o.has_parent.then(|| o.name(o.parent)), start_position: None, blocks })
        } else {
            let block_hashes = self.gone[o.from..o.to].iter().map(|&s| o.name(s)).collect();
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        };
        WorkerTask::Event(RouterEvent::new(u64::from(o.owner), KvCacheEvent { event_id: 0, data, dp_rank: 0 }))
    }

    fn chain(&self, o: &Op) -> &[LocalBlockHash] {
        &self.local[o.from..o.to]
    }
}

fn u32_of(r: &mut impl Read) -> std::io::Result<u32> {
    let mut b = [0; 4];
    r.read_exact(&mut b).map(|()| u32::from_le_bytes(b))
}

fn u64_of(r: &mut impl Read) -> std::io::Result<u64> {
    let mut b = [0; 8];
    r.read_exact(&mut b).map(|()| u64::from_le_bytes(b))
}

/// A tape is a channel of tasks, and the receivers that keep its wakers alive.
struct Tape {
    tasks: Option<flume::Sender<WorkerTask>>,
    out: flume::Receiver<WorkerTask>,
    acks: Vec<oneshot::Receiver<()>>,
    len: u32,
}

struct Call<F: Fn() + Send + Sync>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        (self.0)()
    }
    fn wake_by_ref(self: &Arc<Self>) {
        (self.0)()
    }
}

impl Tape {
    fn new() -> Tape {
        let (tasks, out) = flume::unbounded();
        Tape { tasks: Some(tasks), out, acks: Vec::new(), len: 0 }
    }
    fn put(&mut self, task: WorkerTask) {
        self.len += 1;
        self.tasks.as_ref().unwrap().send(task).unwrap();
    }
    /// Calls f on the worker's thread when the worker gets there.
    fn call(&mut self, f: impl Fn() + Send + Sync + 'static) {
        let (ack, mut acked) = oneshot::channel();
        let waker = Waker::from(Arc::new(Call(f)));
        assert!(Pin::new(&mut acked).poll(&mut Context::from_waker(&waker)).is_pending());
        self.acks.push(acked);
        self.put(WorkerTask::Flush(ack));
    }
    /// Ends the worker behind the last task.
    fn end(&mut self) -> flume::Receiver<WorkerTask> {
        self.tasks = None;
        self.out.clone()
    }
}

/// What a task of a tape costs without the tree.
fn channel_cost() -> Duration {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let n = 100_000;
        let mut tape = Tape::new();
        for _ in 0..n {
            let data = KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: Vec::new() });
            tape.put(WorkerTask::Event(RouterEvent::new(0, KvCacheEvent { event_id: 0, data, dp_rank: 0 })));
        }
        let out = tape.end();
        let from = Instant::now();
        while let Ok(task) = out.recv() {
            if let WorkerTask::Event(event) = task {
                drop(black_box(event));
            }
        }
        best = best.min(from.elapsed() / n);
    }
    best
}

fn clock_cost() -> Duration {
    let round = || {
        let from = Instant::now();
        for _ in 0..999 {
            black_box(Instant::now());
        }
        from.elapsed() / 1000
    };
    (0..50).map(|_| round()).min().unwrap()
}

fn cpu_of(clock: libc::clockid_t) -> Duration {
    let mut t: libc::timespec = unsafe { std::mem::zeroed() };
    unsafe { libc::clock_gettime(clock, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Samples of one class.
const MOST: usize = 1 << 20;

/// Freeing an answer takes no longer. A thread that waits for a core there does, and its CPU time goes on without that.
const LONGEST_FREE: Duration = Duration::from_micros(20);

#[derive(Default)]
struct Log {
    nanos: [Vec<u32>; CLASSES.len()],
    asked: Duration,
    unasked: Duration, // reading prompts, freeing answers, reading the clock
    blocks: u64,
    hashes: Vec<u64>,
}

/// Asks one query, whose hashes lie in the caches, where a server that has just made them from tokens has them. The
/// time to read them before, and to free the answer, is no part of it.
fn ask(tree: &Tree, x: &Ops, o: &Op, cost: Duration, log: &mut Log) {
    let before = Instant::now();
    black_box(x.chain(o).iter().fold(0, |sum: u64, l| sum.wrapping_add(l.0)));
    let from = Instant::now();
    let read = from - before;
    let scores = tree.find_matches(x.chain(o), false);
    let took = from.elapsed().saturating_sub(cost);
    drop(black_box(scores));
    log.asked += took;
    log.blocks += o.len();
    let nanos = &mut log.nanos[o.class()];
    if nanos.len() < MOST {
        nanos.push(took.as_nanos().min(u128::from(u32::MAX)) as u32);
    }
    log.unasked += read + (from.elapsed() + cost - took).min(LONGEST_FREE);
}

/// The hash of the rows of an answer, by owner.
fn hash_of(scores: &OverlapScores) -> u64 {
    let mut rows: Vec<u64> = scores.scores.iter().filter(|(_, d)| **d > 0).map(|(w, d)| w.worker_id << 32 | u64::from(*d)).collect();
    rows.sort_unstable();
    let put = |sum: u64, v: u64| (sum ^ v).wrapping_mul(1_099_511_628_211);
    rows.iter().fold(put(14_695_981_039_346_656_037, rows.len() as u64), |sum, &v| put(sum, v))
}

/// Replays the file on this thread, each query by f.
fn replay(x: &Arc<Ops>, tree: &Arc<Tree>, log: &Arc<Mutex<Log>>, f: fn(&Tree, &Ops, &Op, &mut Log)) -> (Duration, Duration, u32) {
    let mut tape = Tape::new();
    let mut i = 0;
    while i < x.ops.len() {
        let o = &x.ops[i];
        i += 1;
        if o.applies() {
            tape.put(x.event(o));
        }
        if o.kind != QUERY {
            continue;
        }
        let from = i - 1;
        while i < x.ops.len() && x.ops[i].kind == QUERY {
            i += 1;
        }
        let (x, tree, log, to) = (x.clone(), tree.clone(), log.clone(), i);
        tape.call(move || {
            let mut log = log.lock().unwrap();
            for o in &x.ops[from..to] {
                f(&tree, &x, o, &mut log);
            }
        });
    }
    let out = tape.end();
    let (from, cpu) = (Instant::now(), cpu_of(libc::CLOCK_PROCESS_CPUTIME_ID));
    tree.worker(out, None).unwrap();
    (from.elapsed(), cpu_of(libc::CLOCK_PROCESS_CPUTIME_ID) - cpu, tape.len)
}

/// Latencies as a JSON object.
fn latencies(v: &mut [u32]) -> String {
    v.sort_unstable();
    let at = |q: f64| if v.is_empty() { 0 } else { v[(q * (v.len() - 1) as f64).round() as usize] };
    format!("{{\"p50_ns\":{},\"p99_ns\":{},\"p999_ns\":{},\"max_ns\":{}}}", at(0.5), at(0.99), at(0.999), at(1.0))
}

fn rate(blocks: u64, d: Duration) -> f64 {
    blocks as f64 / d.as_secs_f64().max(1e-9)
}

fn written(x: &Ops, from: usize) -> u64 {
    x.ops[from..].iter().filter(|o| o.applies()).map(Op::len).sum()
}

fn time(x: &Arc<Ops>) {
    static COST: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    let (cost, channel) = (*COST.get_or_init(clock_cost), channel_cost());
    let tree = Arc::new(Tree::new());
    let log = Arc::new(Mutex::new(Log::default()));
    for o in x.ops.iter().filter(|o| o.kind == QUERY) {
        log.lock().unwrap().nanos[o.class()].reserve(MOST.min(x.ops.len()));
    }
    let (wall, cpu, tasks) = replay(x, &tree, &log, |tree, x, o, log| ask(tree, x, o, COST.get().copied().unwrap_or_default(), log));
    let mut log = log.lock().unwrap();
    let off = channel * tasks + log.unasked;
    let wall = wall.saturating_sub(off);
    let cpu = cpu.saturating_sub(off);
    // A thread that waited for a core waited in both parts alike.
    let queries = cpu.mul_f64(log.asked.as_secs_f64() / wall.as_secs_f64().max(1e-9));
    let writes = written(x, 0);
    let blocks = log.blocks;
    let all_ops = rate(blocks + writes, cpu);
    let mut all = log.nanos.concat();
    let classes: Vec<String> = std::iter::zip(CLASSES, &mut log.nanos)
        .skip(1)
        .filter(|(_, nanos)| !nanos.is_empty())
        .map(|(class, nanos)| format!("\"{class}\":{}", latencies(nanos)))
        .collect();
    println!(
        "{{\"block_ops_per_sec\":{all_ops:.0},\"token_block_ops_per_sec\":{all_ops:.0},\"query_blocks_per_sec\":{:.0},\"write_blocks_per_sec\":{:.0},\"query\":{},\"classes\":{{{}}},\"cpu_seconds\":{:.3},\"channel_ns\":{},\"clock_ns\":{}}}",
        rate(blocks, queries), rate(writes, cpu.saturating_sub(queries)),
        latencies(&mut all), classes.join(","), cpu.as_secs_f64(), channel.as_nanos(), cost.as_nanos()
    );
}

fn answers(x: &Arc<Ops>, out: &str) {
    let tree = Arc::new(Tree::new());
    let log = Arc::new(Mutex::new(Log::default()));
    replay(x, &tree, &log, |tree, x, o, log| {
        let h = hash_of(&tree.find_matches(x.chain(o), false));
        log.hashes.push(h);
    });
    let mut f = std::io::BufWriter::new(std::fs::File::create(out).unwrap());
    let hashes = &log.lock().unwrap().hashes;
    for h in hashes {
        f.write_all(&h.to_le_bytes()).unwrap();
    }
    f.flush().unwrap();
    println!("{{\"queries\":{}}}", hashes.len());
}

fn resident() -> i64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<i64>().unwrap() * unsafe { libc::sysconf(libc::_SC_PAGESIZE) }
}

fn allocated() -> i64 {
    let m = unsafe { libc::mallinfo2() };
    (m.uordblks + m.hblkhd) as i64
}

fn mem(x: &Arc<Ops>) {
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }; // mallinfo2 counts one arena
    let tree = Arc::new(Tree::new());
    let (tasks, out) = flume::bounded(16);
    let worker = std::thread::spawn({
        let tree = tree.clone();
        move || tree.worker(out, None).unwrap()
    });
    let flush = || {
        let (ack, acked) = oneshot::channel();
        tasks.send(WorkerTask::Flush(ack)).unwrap();
        acked.blocking_recv().unwrap();
    };
    flush();
    unsafe { libc::malloc_trim(0) };
    let (rss, bytes, mut peak) = (resident(), allocated(), 0);
    for (i, o) in x.ops.iter().enumerate() {
        if o.applies() {
            tasks.send(x.event(o)).unwrap();
        }
        if i % 4096 == 0 {
            peak = peak.max(resident() - rss);
        }
    }
    flush();
    let loaded = resident() - rss;
    // What the crate's own timer does every five minutes.
    let unswept = allocated() - bytes;
    tree.run_cleanup_task();
    unsafe { libc::malloc_trim(0) };
    let live = allocated() - bytes;
    println!(
        "{{\"bytes_per_block\":{:.1},\"bytes_unswept_per_block\":{:.1},\"rss_bytes\":{},\"rss_peak_bytes\":{},\"rss_swept_bytes\":{},\"rss_per_membership\":{:.1},\"unique_blocks\":{},\"memberships\":{}}}",
        live as f64 / x.unique.max(1) as f64, unswept as f64 / x.unique.max(1) as f64, loaded, peak.max(loaded), resident() - rss, loaded as f64 / x.members.max(1) as f64, x.unique, x.members
    );
    drop(tasks);
    worker.join().unwrap();
}

/// A pool of threads that apply tapes to one tree, as the crate's `ThreadPoolIndexer` has: a channel for each thread, all
/// events of a worker in the same one, and each thread in the loop of `SyncIndexer::worker`.
struct Pool {
    tree: Arc<Tree>,
    tapes: Vec<Tape>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Pool {
    /// Applies the first half of the file and waits until it is in the tree.
    fn new(x: &Arc<Ops>, half: usize, n: usize) -> Pool {
        let tree = Arc::new(Tree::new());
        let mut tapes: Vec<Tape> = (0..n).map(|_| Tape::new()).collect();
        for o in x.ops[..half].iter().filter(|o| o.applies()) {
            tapes[o.owner as usize % n].put(x.event(o));
        }
        let barrier = Arc::new(Barrier::new(n + 1));
        for tape in &mut tapes {
            let b = barrier.clone();
            tape.call(move || {
                b.wait();
            });
        }
        let threads = tapes
            .iter()
            .map(|tape| {
                let (tree, out) = (tree.clone(), tape.out.clone());
                std::thread::spawn(move || tree.worker(out, None).unwrap())
            })
            .collect();
        barrier.wait();
        Pool { tree, tapes, threads }
    }
    /// Applies the second half, which lies in the channels before the clocks start, and calls first when the first thread
    /// is done. Returns blocks a second of wall and of CPU time without the channel, each the sum over the threads,
    /// and the wall time of the slowest one.
    fn write(&mut self, x: &Arc<Ops>, half: usize, channel: Duration, first: impl Fn() + Send + Sync + 'static) -> (f64, f64, Duration) {
        let n = self.tapes.len();
        let (ready, done) = (Arc::new(Barrier::new(n + 1)), Arc::new(Barrier::new(n + 1)));
        let first = Arc::new(first);
        let now = || (Instant::now(), cpu_of(libc::CLOCK_THREAD_CPUTIME_ID));
        let mut marks = Vec::new();
        for tape in &mut self.tapes {
            let mark = Arc::new(Mutex::new(Vec::new()));
            let (m, b) = (mark.clone(), ready.clone());
            tape.call(move || {
                b.wait();
                m.lock().unwrap().push(now());
            });
            marks.push((mark, tape.len, 0));
        }
        for o in x.ops[half..].iter().filter(|o| o.applies()) {
            let i = o.owner as usize % n;
            self.tapes[i].put(x.event(o));
            marks[i].2 += o.len();
        }
        for (tape, (mark, before, _)) in self.tapes.iter_mut().zip(&mut marks) {
            *before = tape.len - *before;
            let (m, b, first) = (mark.clone(), done.clone(), first.clone());
            tape.call(move || {
                m.lock().unwrap().push(now());
                first();
                b.wait();
            });
        }
        ready.wait();
        done.wait();
        let mut sum = (0.0, 0.0, Duration::ZERO);
        for (mark, tasks, blocks) in &marks {
            let m = mark.lock().unwrap();
            let off = channel * *tasks;
            let (wall, cpu) = ((m[1].0 - m[0].0).saturating_sub(off), (m[1].1 - m[0].1).saturating_sub(off));
            sum = (sum.0 + rate(*blocks, wall), sum.1 + rate(*blocks, cpu), sum.2.max(wall));
        }
        sum
    }
    fn stop(mut self) {
        for tape in &mut self.tapes {
            tape.end();
        }
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Asks the queries of the second half over and over, each of n readers from elsewhere. Returns blocks a second of wall
/// and of CPU time, each the sum over the readers, and the latencies.
fn read(tree: &Arc<Tree>, x: &Ops, half: usize, n: usize, cost: Duration, halt: &AtomicBool) -> (f64, f64, Vec<u32>) {
    let asks: Vec<&Op> = x.ops[half..].iter().filter(|o| o.kind == QUERY).collect();
    let one = |i: usize| {
        let mut log = Log::default();
        let cpu = cpu_of(libc::CLOCK_THREAD_CPUTIME_ID);
        for o in asks.iter().cycle().skip(i * asks.len() / n) {
            ask(tree, x, o, cost, &mut log);
            if halt.load(Relaxed) {
                break;
            }
        }
        let cpu = (cpu_of(libc::CLOCK_THREAD_CPUTIME_ID) - cpu).saturating_sub(log.unasked);
        (rate(log.blocks, log.asked), rate(log.blocks, cpu), log.nanos.concat())
    };
    std::thread::scope(|s| {
        let one = &one;
        let readers: Vec<_> = (0..n).map(|i| s.spawn(move || one(i))).collect();
        readers.into_iter().map(|r| r.join().unwrap()).fold((0.0, 0.0, Vec::new()), |mut sum, (wall, cpu, mut nanos)| {
            sum.2.append(&mut nanos);
            (sum.0 + wall, sum.1 + cpu, sum.2)
        })
    })
}

/// Measures n writers and n readers, alone and side by side: this until the writers have written for some time.
fn together(x: &Arc<Ops>, n: usize, least: Duration) {
    let (half, cost, channel) = (x.ops.len() / 2, clock_cost(), channel_cost());
    let alone = |tree: &Arc<Tree>| {
        let halt = AtomicBool::new(false);
        std::thread::scope(|s| {
            let readers = s.spawn(|| read(tree, x, half, n, cost, &halt));
            std::thread::sleep(Duration::from_secs(1));
            halt.store(true, Relaxed);
            readers.join().unwrap()
        })
    };
    let mut pool = Pool::new(x, half, n);
    let (before, before_cpu, mut alone_nanos) = alone(&pool.tree);
    let (write_alone, write_cpu, _) = pool.write(x, half, channel, || {});
    let (after, after_cpu, mut after_nanos) = alone(&pool.tree);
    pool.stop();
    alone_nanos.append(&mut after_nanos);

    let (mut write_together, mut both_cpu, mut read_together, mut beside_cpu, mut beside_nanos) = (0.0, 0.0, 0.0, 0.0, Vec::new());
    let (mut rounds, mut took) = (0.0, Duration::ZERO);
    while rounds == 0.0 || took < least {
        let mut pool = Pool::new(x, half, n);
        let halt = Arc::new(AtomicBool::new(false));
        let (tree, first) = (pool.tree.clone(), halt.clone());
        let (wrote, read) = std::thread::scope(|s| {
            let readers = s.spawn(|| read(&tree, x, half, n, cost, &halt));
            let wrote = pool.write(x, half, channel, move || first.store(true, Relaxed));
            (wrote, readers.join().unwrap())
        });
        pool.stop();
        write_together += wrote.0;
        both_cpu += wrote.1;
        took += wrote.2;
        read_together += read.0;
        beside_cpu += read.1;
        beside_nanos.extend(read.2);
        rounds += 1.0;
    }
    for sum in [&mut write_together, &mut both_cpu, &mut read_together, &mut beside_cpu] {
        *sum /= rounds;
    }
    let (read_alone, read_cpu) = ((before + after) / 2.0, (before_cpu + after_cpu) / 2.0);
    println!(
        "{{\"together\":{{\"write_alone_blocks_per_sec\":{write_alone:.0},\"write_together_blocks_per_sec\":{write_together:.0},\"write_kept\":{:.3},\
         \"read_alone_blocks_per_sec\":{read_alone:.0},\"read_together_blocks_per_sec\":{read_together:.0},\"read_kept\":{:.3},\
         \"write_alone_per_cpu_sec\":{write_cpu:.0},\"write_together_per_cpu_sec\":{both_cpu:.0},\"read_alone_per_cpu_sec\":{read_cpu:.0},\"read_together_per_cpu_sec\":{beside_cpu:.0},\
         \"alone\":{},\"beside\":{}}}}}",
        write_together / write_alone, read_together / read_alone, latencies(&mut alone_nanos), latencies(&mut beside_nanos)
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let usage = || -> ! {
        eprintln!("usage: crtc OPS time|mem, crtc OPS together [N [SECONDS]], or crtc OPS answers OUT");
        std::process::exit(2);
    };
    let (path, mode, rest) = match &args[1..] {
        [path, mode, rest @ ..] => (path, mode.as_str(), rest),
        _ => usage(),
    };
    let known = match (mode, rest.len()) {
        ("time" | "mem", 0) | ("together", 0..=2) | ("answers", 1) => true,
        _ => false,
    };
    let number = |i: usize, default: f64| rest.get(i).map_or(Some(default), |n| n.parse().ok());
    let (Some(each), Some(seconds), true) = (if mode == "together" { number(0, 1.0) } else { Some(1.0) }, number(1, 0.0), known) else { usage() };
    let x = match Ops::open(path) {
        Ok(x) => Arc::new(x),
        Err(e) => {
            eprintln!("cannot read {path}: {e}");
            std::process::exit(1);
        }
    };
    match mode {
        "time" => time(&x),
        "mem" => mem(&x),
        "together" => together(&x, (each as usize).max(1), Duration::from_secs_f64(seconds.max(0.0))),
        _ => answers(&x, &rest[0]),
    }
    std::process::exit(0); // without freeing the tree
}
