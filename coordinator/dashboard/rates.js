// From counters that only grow to what happens per second now.

const SHORTEST_S = 0.5;

export class Rates {
  #last = new Map();

  // null until a counter was seen twice. A counter that fell belongs to a restarted engine.
  of(name, value, at_s) {
    const last = this.#last.get(name);
    if (!last || value < last.value) {
      this.#last.set(name, { value, at_s, rate: null });
      return null;
    }
    const took_s = at_s - last.at_s;
    if (took_s < SHORTEST_S) return last.rate;
    const rate = (value - last.value) / took_s;
    this.#last.set(name, { value, at_s, rate });
    return rate;
  }
}
