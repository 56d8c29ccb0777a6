#include "partition/report/page_style.h"

namespace stagecoach::partition {

// Memory has colors of its own, apart from those of the timeline: what is kept for the whole run
// in shades of one, what comes and goes in others.
const char kReceiptStyle[] = R"css(
:root{--weights:hsl(250,42%,52%);--gradients:hsl(250,52%,67%);--optimizer:hsl(250,62%,81%);--stash:hsl(16,82%,63%);--buffers:hsl(215,14%,64%);--forward:hsl(213,85%,73%);--backward:hsl(178,44%,60%);--messages:hsl(335,55%,72%);--empty:#eef1f6;--over:#c8321f}
@media (prefers-color-scheme:dark){:root{--weights:hsl(250,50%,58%);--gradients:hsl(250,52%,70%);--optimizer:hsl(250,55%,83%);--empty:#1c2430;--over:#ff8a75}}
body{max-width:1500px;margin:0 auto}
header{display:block;margin-bottom:18px}
header p{margin:3px 0 0;color:var(--mute);overflow-wrap:anywhere}
main{display:grid;gap:18px;grid-template-columns:minmax(0,1fr)}
main>*{min-width:0}
h2{font-size:15px;font-weight:650;margin:0}
.tiles{display:grid;grid-template-columns:repeat(4,minmax(0,1fr));margin:0}
@media (min-width:1120px){.tiles{grid-template-columns:repeat(auto-fit,minmax(132px,1fr))}}
.tiles div{padding:12px 14px 13px;min-width:0;box-shadow:1px 1px 0 var(--line)}
.tiles dt{font-size:13px}
.tiles dd{font-size:clamp(17px,1.7vw,21px);line-height:1.3;font-weight:650;overflow-wrap:anywhere}
.tiles small{display:block;font-size:13px;line-height:1.35;font-weight:400;color:var(--mute)}
.pair{display:grid;gap:18px;grid-template-columns:minmax(0,1fr);align-items:start}
@media (min-width:1020px){.pair.few{grid-template-columns:minmax(0,1.7fr) minmax(0,1fr);align-items:stretch}}
.head{display:flex;flex-wrap:wrap;align-items:baseline;gap:6px 20px;padding:12px 16px 11px;border-bottom:1px solid var(--line)}
.head .legend{flex:1;justify-content:flex-end}
.swatch{display:inline-block;width:12px;height:12px;border-radius:3px}
.few>section:first-child{display:flex;flex-direction:column}
.bars{flex:1;padding:12px 16px 14px;column-gap:36px}
.few .bars{display:grid;align-content:space-evenly}
.bars.many{columns:2 430px}
.device{display:grid;grid-template-columns:minmax(90px,140px) minmax(0,1fr) max-content;gap:12px;align-items:center;padding:4px 0;break-inside:avoid}
.device b{display:flex;font-weight:600;white-space:pre}
.device .start{overflow:hidden;text-overflow:ellipsis}
.device .end{flex:none}
.device div>span,.note{color:var(--mute);font-size:13px}
.many .device{grid-template-columns:minmax(0,200px) minmax(0,1fr) max-content}
.many .device b{display:inline-flex;max-width:60%;vertical-align:bottom}
.many .device>div:first-child{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.device .amount{min-width:9ch;text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.device .amount:has(span:not(:empty)){min-width:20ch}
.meter{position:relative;height:22px;border-radius:4px;background:var(--empty);display:flex}
.many .meter{height:14px}
.meter i{display:block;height:100%;min-width:0}
.meter i+i{box-shadow:inset 1px 0 var(--card)}
.meter i:first-child{border-radius:4px 0 0 4px}
.meter u{position:absolute;top:-3px;bottom:-3px;width:2px;margin-left:-2px;background:var(--ink);border-radius:1px}
.over{color:var(--over)}.over b{color:var(--over)}
.why{padding:13px 16px 15px;display:grid;gap:12px;align-content:start}
.why div{min-width:0}
.why dl,.why dd{margin:0}
.why dl{display:grid;gap:12px 28px}
.pair:not(.few) .why dl{grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr))}
.why dd{font-weight:400;overflow-wrap:anywhere}
.why dt{font-size:13px}
.why ul{margin:0;padding-left:18px}
.scroll table{width:100%}
.scroll th,.scroll td{padding:6px 11px}
.scroll th:first-child,.scroll td:first-child{padding-left:16px}
.scroll .name{max-width:220px;overflow:hidden;text-overflow:ellipsis}
.scroll .meter{height:12px;width:170px;border-radius:3px}
.help{flex:none;padding:0 16px 12px}
@media (max-width:560px){body{padding:14px 12px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.device,.many .device{grid-template-columns:minmax(0,1fr) auto;gap:5px 12px}
.device .meter{grid-row:2;grid-column:1/3}
.head .legend{justify-content:flex-start}
.device b{display:inline-flex;max-width:100%;vertical-align:bottom}}
)css";

}  // namespace stagecoach::partition
