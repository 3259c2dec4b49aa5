declare const highlighter: Highlighter;
export default highlighter;
