// The signal at any zoom: tiles of samples (level 0) or of smallest and largest values, kept up to a limit of bytes.

const TILE = 2048, MOST_TOGETHER = 16, MOST_BYTES = 96 * 2 ** 20;

export class Signal {
  constructor(wire, info) {
    Object.assign(this, { wire, info, tiles: new Map(), bytes: 0, asked: new Map() });
  }

  size(level) { return level ? this.info.first * this.info.factor ** (level - 1) : 1; }

  // The highest level with about a bucket for each pixel or two.
  level(samplesPerPixel) {
    let level = 0;
    while (level < this.info.num_levels && this.size(level + 1) <= samplesPerPixel * 1.5) level++;
    return level;
  }

  tile(lead, level, index) {
    const key = `${lead}/${level}/${index}`, tile = this.tiles.get(key);
    if (tile) { this.tiles.delete(key); this.tiles.set(key, tile); }  // the last used one is the last to go
    return tile;
  }

  // A promise of all tiles between two samples, or null if they are here.
  need(level, start, stop, leads) {
    const { num_samples } = this.info, span = TILE * this.size(level), waits = [];
    const first = Math.max(0, Math.floor(start / span)), last = Math.floor(Math.min(num_samples - 1, stop) / span);
    for (let index = first; index <= last;) {
      const absent = leads.filter(lead => !this.tile(lead, level, index));
      if (!absent.length) { index++; continue; }
      let num = 1;  // more tiles of the same leads are asked for together
      while (num < MOST_TOGETHER && index + num <= last && absent.every(lead => !this.tile(lead, level, index + num))) num++;
      const key = `${level}/${index}/${num}/${absent}`;
      if (!this.asked.has(key)) this.asked.set(key, this.load(level, index, num, absent).finally(() => this.asked.delete(key)));
      waits.push(this.asked.get(key));
      index += num;
    }
    return waits.length ? Promise.all(waits) : null;
  }

  async load(level, index, num, leads) {
    const { values, complete } = await this.wire.ask("signal", { level, start: index * TILE, num: num * TILE, leads });
    const length = values.length / leads.length, span = TILE * (level ? 2 : 1);
    leads.forEach((lead, place) => {
      for (let part = 0; part < num; part++) {  // copies, so that a tile that goes frees its memory
        const tile = values.slice(place * length + Math.min(length, part * span), place * length + Math.min(length, (part + 1) * span));
        const key = `${lead}/${level}/${index + part}`;
        this.forget(key);
        this.tiles.set(key, tile);
        this.bytes += tile.byteLength;
        if (!complete) setTimeout(() => this.forget(key), 1000);  // the server is still building it
      }
    });
    for (const key of this.tiles.keys()) {
      if (this.bytes <= MOST_BYTES) break;
      this.forget(key);
    }
    if (!complete) setTimeout(() => this.onMore?.(), 1050);
  }

  forget(key) {
    this.bytes -= this.tiles.get(key)?.byteLength ?? 0;
    this.tiles.delete(key);
  }

  // Add the signal between two samples to the path of a canvas. x and y map samples and values.
  path(g, lead, level, start, stop, x, y) {
    const size = this.size(level), { missing } = this.info;
    const first = Math.max(0, Math.floor(start / size)), last = Math.ceil(Math.min(this.info.num_samples, stop) / size);
    let pen = false;
    for (let at = first; at < last;) {
      const index = Math.floor(at / TILE), tile = this.tile(lead, level, index), end = Math.min(last, (index + 1) * TILE);
      if (!tile) { at = end; pen = false; continue; }
      for (; at < end; at++) {
        const place = at - index * TILE, low = level ? tile[2 * place] : tile[place];
        if (low === missing || low === undefined) { pen = false; continue; }
        const px = x((at + (level ? 0.5 : 0)) * size);
        if (level) {
          const top = y(tile[2 * place + 1]);
          pen ? g.lineTo(px, top) : g.moveTo(px, top);
          g.lineTo(px, y(low));
        } else pen ? g.lineTo(px, y(low)) : g.moveTo(px, y(low));
        pen = true;
      }
    }
  }

  // The median value of what is here between two samples, about which a lead is drawn.
  middle(lead, level, start, stop) {
    const size = this.size(level), values = [], step = Math.max(1, Math.floor((stop - start) / size / 400));
    for (let at = Math.max(0, Math.floor(start / size)); at < stop / size; at += step) {
      const tile = this.tiles.get(`${lead}/${level}/${Math.floor(at / TILE)}`), place = at % TILE;
      if (!tile) continue;
      const low = level ? tile[2 * place] : tile[place];
      if (low !== undefined && low !== this.info.missing) values.push(level ? (low + tile[2 * place + 1]) / 2 : low);
    }
    return values.length ? values.sort((a, b) => a - b)[values.length >> 1] : 0;
  }
}
