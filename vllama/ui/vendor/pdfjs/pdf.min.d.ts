/** What the web UI uses of pdf.js. */
export declare const GlobalWorkerOptions: { workerSrc: string };
export declare function getDocument(options: object): {
  promise: Promise<{
    numPages: number;
    getPage(number: number): Promise<{
      getTextContent(): Promise<{ items: { str?: string; hasEOL?: boolean }[] }>;
      cleanup(): void;
    }>;
  }>;
  destroy(): Promise<void>;
};
