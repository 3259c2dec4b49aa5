/** As lit-html's own, but its result has the type of the value. */
export declare function live<Value>(value: Value): Value;
