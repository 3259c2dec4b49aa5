/** As lit-html's own, but its result is known to be an object. */
export declare function repeat<Item>(
  items: Iterable<Item>,
  key: (item: Item, index: number) => unknown,
  template: (item: Item, index: number) => Renderable,
): object;
